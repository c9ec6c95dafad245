from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from finished_stage import put_record
from free_port import free_port
from listener import Listener
from loose_stage import stage_spec
from reading_stand_in import SURE, ReadingStandIn

from eval_gates import ask
from pipeline.serving.served_model import SERVED_NAME
from pipeline.stages.context import advance
from pipeline.stages.sanity import PROMPTS, SANITY, TOKENS
from prepare.errors import StageError
from prepare.stage import StageRecord, StageReference
from prepare.store import Store

ELSEWHERE = {"side": "candidate", "url": "u", "model": "m", "deployment_id": "s", "tokenizer": "t"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def baseline(store: Store) -> Iterator[StageRecord]:
    with ReadingStandIn() as server:
        yield run(store, server.url)


def run(
    store: Store, url: str, baseline: StageRecord | None = None, **parameters: Any
) -> StageRecord:
    inputs = {}
    if baseline is not None:
        put_record(store, baseline)
        inputs["baseline"] = StageReference(stage="sanity", key=baseline.key)
    runtime: dict[str, Any] = {"url": url, "model": SERVED_NAME, "server": {"ready_seconds": 5.0}}
    parameters = {"serving": {"engine_arguments": {}, "environment": {}}, **parameters}
    name = "fp8" if baseline else "baseline"
    spec = stage_spec("sanity", name, parameters, inputs, runtime, store.root)
    return advance(spec, store, Listener())[0]


def test_a_baseline_writes_and_reads_its_own_text(baseline: StageRecord) -> None:
    result = baseline.result
    assert (result["broken"], result["nats_lost"], result["kept"]) == ("", None, 1.0)
    assert result["nats"] == pytest.approx(-SURE)
    assert [len(each["answer_ids"]) for each in result["texts"]] == [TOKENS] * len(PROMPTS)
    assert result["server"] == {"ready_seconds": 5.0}


@pytest.mark.parametrize(("nats", "is_told"), [(5.5, False), (10.5, True)])
def test_a_baseline_that_does_not_know_english_is_told(
    store: Store, nats: float, is_told: bool
) -> None:
    with ReadingStandIn(unsure=-nats) as server:
        record = run(store, server.url)
    assert record.result["broken"] == ""
    assert record.result["prose_nats"] == pytest.approx(nats, abs=0.5)
    assert ["nats a token" in note for note in record.notes] == [True] * is_told


def test_a_variant_is_compared_and_not_told_so(store: Store, baseline: StageRecord) -> None:
    with ReadingStandIn(unsure=-10.5) as server:
        record = run(store, server.url, baseline)
    assert record.result["prose_nats"] is None
    assert record.notes == []


@pytest.mark.parametrize("lost", [0.0, 0.9, 1.1])
def test_a_variant_by_the_nats_that_it_loses(
    store: Store, baseline: StageRecord, lost: float
) -> None:
    with ReadingStandIn(lost=lost) as server:
        found = SANITY.result_of(run(store, server.url, baseline))
    assert found.nats_lost == pytest.approx(lost)
    assert found.broken == ""
    assert [bool(found.fault(limit)) for limit in (0.5, 1.0, 2.0)] == [lost > 0.5, lost > 1, False]


def test_a_variant_reads_the_baselines_tokens_not_its_own(
    store: Store, baseline: StageRecord
) -> None:
    with ReadingStandIn(forgets=2) as server:
        result = run(store, server.url, baseline).result
        read = [b["prompt"] for _, b in server.requests if "prompt_logprobs" in b]
    assert result["nats_lost"] > 0.5
    assert result["kept"] == 1.0
    for text in baseline.result["texts"]:
        assert text["prompt_ids"] + text["answer_ids"] in read


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"value": math.nan}, "not numbers"),
        ({"value": math.inf}, "not numbers"),
        ({"value": -9999.0}, "is broken"),  # vLLM's placeholder for minus infinity
        ({"text": " \n"}, "answers with nothing"),
        ({"mutters": True}, "chooses 0 %"),
    ],
)
def test_broken_models(
    store: Store, baseline: StageRecord, given: dict[str, Any], words: str
) -> None:
    with ReadingStandIn(**given) as server:
        assert words in SANITY.result_of(run(store, server.url, baseline)).fault(1.0)


def test_another_tokenizer_is_told_by_name(store: Store, baseline: StageRecord) -> None:
    texts = [{**each, "prompt_ids": [1, 2]} for each in baseline.result["texts"]]
    other = baseline.model_copy(update={"result": {**baseline.result, "texts": texts}})
    with ReadingStandIn() as server:
        assert "another tokenizer" in run(store, server.url, other).result["broken"]


@pytest.mark.parametrize(("text", "is_broken"), [("Paris", False), ("  ", True)])
def test_an_endpoint_that_does_not_read_must_write(
    store: Store, baseline: StageRecord, text: str, is_broken: bool
) -> None:
    with ReadingStandIn(can_read=False, text=text) as server:
        record = run(store, server.url, baseline, endpoint=ELSEWHERE)
    assert record.result["nats"] is None
    assert bool(record.result["broken"]) is is_broken
    assert "gives no log-probabilities" in record.notes[0]


def test_half_a_surrogate_pair_is_recorded_as_an_escape(
    store: Store, baseline: StageRecord
) -> None:
    with ReadingStandIn(can_read=False, text="Paris \ud800") as server:
        record = run(store, server.url, baseline, endpoint=ELSEWHERE)
    assert record.result["texts"][0]["text"] == "Paris \\ud800"


def test_our_own_server_must_read(store: Store) -> None:
    with ReadingStandIn(can_read=False) as server, pytest.raises(StageError, match=" 404"):
        run(store, server.url)


def test_a_server_that_does_not_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "TRIES", 1)
    with ReadingStandIn(status=500) as server, pytest.raises(StageError, match=" 500") as caught:
        run(store, server.url)
    assert caught.value.where.startswith(server.url)
    with pytest.raises(StageError):
        run(store, f"http://127.0.0.1:{free_port()}")
    assert not list((store.root / "stages" / "sanity").glob("*/stage.json"))
