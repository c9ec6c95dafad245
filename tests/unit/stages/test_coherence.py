"""The smoke check, against a real server that speaks, or does not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_stand_ins import OPENAI, TRTLLM, ChatStandIn, Schema
from completions_stand_in import CompletionsStandIn
from finished_stage import put_record, stage_record
from free_port import free_port
from listener import Listener
from loose_stage import stage_spec

from eval_gates.chat_form import ChatForm
from pipeline.core.errors import ServingError
from pipeline.core.stage_record import StageRecord, StageReference
from pipeline.core.store import Store
from pipeline.serving.serving_names import SERVED_NAME
from pipeline.stages.coherence.run import MAXIMUM_PERPLEXITY_RATIO, PASSAGE, incoherence
from pipeline.stages.context import execute

SERVER_FACTS = {"ready_seconds": 50.0, "kv_cache_tokens": "4096"}


@pytest.fixture
def server() -> Iterator[CompletionsStandIn]:
    with CompletionsStandIn() as stand_in:
        yield stand_in


FORM = ChatForm(length_key="max_tokens", extended=False)
ELSEWHERE = {"side": "candidate", "url": "u", "model": "m", "deployment_id": "s", "tokenizer": "t"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def run(store: Store, url: str, baseline: float | None = None, **parameters: Any) -> StageRecord:
    """The stage of a variant, or of the baseline itself where no baseline is given."""
    inputs = {}
    if baseline is not None:
        put_record(
            store,
            stage_record(stage="coherence", key="base", result={"perplexity": baseline}, inputs={}),
        )
        inputs["baseline"] = StageReference(stage="coherence", key="base")
    runtime: dict[str, Any] = {"url": url, "model": SERVED_NAME, "server": SERVER_FACTS}
    parameters = {"serving": {"engine_arguments": {}, "environment": {}}, **parameters}
    return execute(
        stage_spec("coherence", "fp8", parameters, inputs, runtime, store.root), Listener()
    )


class TestCoherent:
    def test_a_baseline(self, store: Store, server: CompletionsStandIn) -> None:
        assert run(store, server.url).result == {
            "perplexity": pytest.approx(math.exp(2.0)),
            "perplexity_ratio": None,
            "sample": " Paris, on the Seine.",
            "incoherent": "",
            "server": SERVER_FACTS,
            "engine_version": "",
        }

    def test_a_variant_beside_its_baseline(self, store: Store, server: CompletionsStandIn) -> None:
        result = run(store, server.url, baseline=math.exp(1.9)).result
        assert result["perplexity_ratio"] == pytest.approx(math.exp(0.1))
        assert result["incoherent"] == ""

    def test_every_token_but_first_and_generated_counts(
        self, store: Store, server: CompletionsStandIn
    ) -> None:
        tokens = len(PASSAGE.split(" "))
        server.odd_logprobs = {1: -9.0, tokens - 1: -16.0}
        mean = ((tokens - 3) * 2.0 + 9.0 + 16.0) / (tokens - 1)
        assert run(store, server.url).result["perplexity"] == pytest.approx(math.exp(mean))

    def test_what_is_asked(self, store: Store, server: CompletionsStandIn) -> None:
        run(store, server.url)
        generated, scored = server.requests
        assert {request["model"] for request in server.requests} == {SERVED_NAME}
        assert {request["temperature"] for request in server.requests} == {0}
        assert (scored["prompt"], scored["echo"], scored["logprobs"]) == (PASSAGE, True, 1)
        assert generated["max_tokens"] > 1

    def test_a_proxy_for_other_hosts_is_left_alone(
        self, store: Store, server: CompletionsStandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
        assert run(store, server.url).result["incoherent"] == ""


class TestBroken:
    @pytest.mark.parametrize("value", [math.nan, None, -math.inf, -(10**400)])
    @pytest.mark.parametrize("position", [1, 20])
    def test_one_log_probability_is_no_number(
        self, store: Store, server: CompletionsStandIn, value: float | None, position: int
    ) -> None:
        server.odd_logprobs = {position: value}
        result = run(store, server.url, baseline=7.0).result
        assert "not numbers" in result["incoherent"]
        assert (result["perplexity"], result["perplexity_ratio"]) == (None, None)

    def test_impossible_tokens_by_vllms_placeholder(
        self, store: Store, server: CompletionsStandIn
    ) -> None:
        """vLLM writes -9999 for minus infinity; its exponential does not fit a number."""
        server.logprob = -9999.0
        assert run(store, server.url, baseline=7.0).result["incoherent"]

    @pytest.mark.parametrize("text", ["", " ", "\n\n"])
    def test_it_says_nothing(self, store: Store, server: CompletionsStandIn, text: str) -> None:
        server.text = text
        assert "answers with nothing" in run(store, server.url).result["incoherent"]

    def test_perplexity_far_above_the_baselines(
        self, store: Store, server: CompletionsStandIn
    ) -> None:
        server.logprob = -6.0
        result = run(store, server.url, baseline=math.exp(2.0)).result
        assert result["perplexity"] == pytest.approx(math.exp(6.0))
        assert "perplexity 403.4" in result["incoherent"]
        assert "more than 2 times the baseline's 7.4" in result["incoherent"]

    @pytest.mark.parametrize(
        ("perplexity", "is_broken"),
        [(10.0 * MAXIMUM_PERPLEXITY_RATIO, False), (10.1 * MAXIMUM_PERPLEXITY_RATIO, True)],
    )
    def test_where_the_line_is(self, perplexity: float, is_broken: bool) -> None:
        assert bool(incoherence(perplexity, 10.0, "text")) is is_broken

    def test_a_baseline_may_be_as_bad_as_it_is(
        self, store: Store, server: CompletionsStandIn
    ) -> None:
        """A model for another language than English is no broken model."""
        server.logprob = -8.0
        assert run(store, server.url).result["incoherent"] == ""


class TestServedBySomeoneElse:
    """Not every OpenAI-compatible server scores prompts."""

    def test_one_that_does_not_score_is_asked_to_speak(
        self, store: Store, server: CompletionsStandIn
    ) -> None:
        server.scores = False
        record = run(store, server.url, baseline=7.0, endpoint=ELSEWHERE)
        assert (record.result["perplexity"], record.result["incoherent"]) == (None, "")
        assert "perplexity not measured" in record.notes[0]

    def test_and_must_speak(self, store: Store, server: CompletionsStandIn) -> None:
        server.scores = False
        server.text = ""
        assert run(store, server.url, endpoint=ELSEWHERE).result["incoherent"]

    @pytest.mark.parametrize(("schema", "form"), [(OPENAI, FORM), (TRTLLM, FORM), (TRTLLM, None)])
    def test_nor_by_chat_or_by_a_server_that_echoes_text_alone(
        self, store: Store, schema: Schema, form: ChatForm | None
    ) -> None:
        with ChatStandIn(schema) as other:
            endpoint = {**ELSEWHERE, "chat": form.model_dump() if form else None}
            record = run(store, other.url, baseline=7.0, endpoint=endpoint)
        assert (record.result["perplexity"], record.result["incoherent"]) == (None, "")
        assert "perplexity not measured" in record.notes[0]
        paths = {path for path, _ in other.requests}
        assert paths == {"/v1/chat/completions" if form else "/v1/completions"}

    def test_ours_must_score(self, store: Store, server: CompletionsStandIn) -> None:
        server.scores = False
        with pytest.raises(ServingError, match=" 400"):
            run(store, server.url)

    def test_the_key_of_the_environment_is_sent(
        self, store: Store, server: CompletionsStandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "a key")
        run(store, server.url, endpoint=ELSEWHERE)
        assert {sent["Authorization"] for sent in server.headers} == {"Bearer a key"}


class TestNoAnswer:
    def test_an_error(self, store: Store, server: CompletionsStandIn) -> None:
        server.status = 500
        with pytest.raises(ServingError, match=" 500") as caught:
            run(store, server.url)
        assert caught.value.where == server.url

    def test_nobody_there(self, store: Store) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        with pytest.raises(ServingError) as caught:
            run(store, url)
        assert caught.value.where == url
        assert not list((store.root / "stages" / "coherence").glob("*/stage.json"))
