"""One load: what vLLM's load generator is asked for, and what is kept of its answer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from vllm_stand_in import Serve

from eval_gates.speed.load_run import RequestColumns
from pipeline.core.errors import ServingError
from pipeline.workers.engine_metrics import MetricsPoller
from pipeline.workers.load_generator import LoadGenerator, LoadTarget, to_columns

RANDOM = {"kind": "random", "input_tokens": 8, "output_tokens": 3}
AT_ONCE = {"rate": None, "concurrency": 4}
AT_A_RATE = {"rate": 2.5, "concurrency": None}


def generator(tmp_path: Path, serve: Serve, **workload: Any) -> LoadGenerator:
    return LoadGenerator(
        serve,
        {"arrivals": AT_ONCE, "warmup_seconds": 1.0, **workload},
        tokenizer="t",
        trust_remote_code=False,
    )


def endpoint(name: str = "model") -> LoadTarget:
    return LoadTarget(f"http://{name}", "m", None, {})


@pytest.fixture(autouse=True)
def without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr("pipeline.workers.engine_metrics.MetricsPoller._fetch", nothing)


def test_nothing_is_sent_before_the_load_and_every_request_is_kept(tmp_path: Path) -> None:
    serve = Serve()
    load = generator(tmp_path, serve, **RANDOM).measure(endpoint(), requests=8, seed=7)
    (asked,) = serve.asked
    assert (asked.num_warmups, asked.num_prompts, asked.seed) == (0, 8, 7)
    assert (asked.max_concurrency, asked.request_rate) == ("4", None)
    assert asked.ignore_eos
    requests = RequestColumns(**load["requests"])
    assert requests.start_s == [0] * 4 + [1] * 4
    assert requests.end_s == [1] * 4 + [2] * 4
    assert set(requests.longest_pause_s) == {0.5}
    assert (load["seconds"], load["before"], load["after"]) == (2, None, None)


def test_the_cache_is_counted_once_the_first_wave_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hits = iter([5, 9])

    async def fetch(_: MetricsPoller) -> dict[str, int]:
        return {"prefix_cache_hits": next(hits)}

    async def look(watch: MetricsPoller) -> None:
        # A load of the stand-in begins at second 100; its first wave lasts one.
        watch.looks += [
            (at, {"prefix_cache_hits": count}) for at, count in ((100.5, 6), (101.5, 7))
        ]

    monkeypatch.setattr(MetricsPoller, "_fetch", fetch)
    monkeypatch.setattr(MetricsPoller, "_look", look)
    load = generator(tmp_path, Serve(), **RANDOM).measure(endpoint(), requests=8, seed=7)
    assert (load["before"], load["after"]) == ({"prefix_cache_hits": 7}, {"prefix_cache_hits": 9})


def test_the_same_seed_asks_the_same_and_another_one_something_else(tmp_path: Path) -> None:
    serve = Serve()
    both = generator(tmp_path, serve, **RANDOM)
    digests = [
        both.measure(endpoint(), requests=4, seed=seed)["prompts_sha256"] for seed in (1, 1, 2)
    ]
    assert digests[0] == digests[1] != digests[2]
    assert serve.tokenizers == 1


def test_a_failed_request_has_an_error_and_no_timings() -> None:
    result = {
        "start_times": [11.0, 10.0],
        **{"ttfts": [0.0, 0.5], "latencies": [0.0, 2.0], "itls": [[], []]},
        **{"input_lens": [8, 8], "output_lens": [0, 1], "errors": ["Traceback\nOSError: x\n", ""]},
    }
    columns = to_columns(result, 10.0, [1, 1])
    assert columns["start_s"] == [0, 1]
    assert columns["error"] == [None, "OSError: x"]
    assert columns["ttft_s"] == [0.5, None]
    assert columns["longest_pause_s"] == [0, None]
    RequestColumns(**columns)


def test_a_server_does_not_choose_its_own_prompts(tmp_path: Path) -> None:
    """vLLM asks a server that counts other tokens for shorter prompts, and sends these."""
    serve = Serve()
    load = generator(tmp_path, serve, **RANDOM).measure(endpoint(), requests=4, seed=7)
    asked = [[each.prompt, each.expected_output_len, None] for each in serve.sent[0]]
    assert not any(each.prompt == "short" for each in serve.sent[0])
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
    assert load["prompts_sha256"] == digest


@pytest.mark.parametrize("came", [1, 2, 30])
def test_an_answer_of_another_length_than_asked_is_none(came: int) -> None:
    """Else a server that stops early, or counts more than it sends, would be faster."""
    result = {
        **{"start_times": [10.0], "ttfts": [0.1], "latencies": [0.2], "itls": [[0.1]]},
        **{"input_lens": [8], "output_lens": [came], "errors": [""]},
    }
    columns = to_columns(result, 10.0, [3])
    assert columns["error"] == [f"{came} tokens came, 3 were asked for"]
    assert columns["output_tokens"] == [0]
    RequestColumns(**columns)


@pytest.mark.parametrize(("came", "counts"), [(1, True), (3, True), (0, False), (4, False)])
def test_a_natural_answer_may_end_early_and_not_late(came: int, counts: bool) -> None:
    result = {
        **{"start_times": [10.0], "ttfts": [0.1], "latencies": [0.2], "itls": [[0.1]]},
        **{"input_lens": [8], "output_lens": [came], "errors": [""]},
    }
    columns = to_columns(result, 10.0, [3], is_natural=True)
    assert (columns["error"] == [None]) == counts
    RequestColumns(**columns)


@pytest.mark.parametrize(("output", "ignores"), [("natural", False), ("fixed", True)])
def test_the_end_of_a_natural_answer_is_heeded(tmp_path: Path, output: str, ignores: bool) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a b"}\n')
    serve = Serve()
    load = {"kind": "requests", "file": str(file), "output_tokens": 3, "output": output}
    generator(tmp_path, serve, **load).measure(endpoint(), requests=4, seed=7)
    assert serve.asked[0].ignore_eos == ignores


def test_a_load_of_which_nothing_is_answered_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match=r"4 .*OSError"):
        generator(tmp_path, Serve(), **RANDOM).measure(endpoint("dead"), requests=4, seed=1)


def options(
    tmp_path: Path, workload: dict[str, Any], seed: int = 3, rate: float | None = None
) -> dict[str, str]:
    words = generator(tmp_path, Serve(), **workload).arguments(endpoint(), 4, seed, rate)
    return {
        name: "" if value.startswith("--") else value
        for name, value in zip(words, [*words[1:], "--"], strict=True)
        if name.startswith("--")
    }


def test_each_kind_has_its_dataset(tmp_path: Path) -> None:
    shared = {"prefixes": 2, "prefix_tokens": 80, "suffix_tokens": 20, "output_tokens": 4}
    found = options(tmp_path, {"kind": "shared_prefix", **shared, "arrivals": AT_A_RATE}, rate=2.25)
    # The rate that stretches the drawn number of requests over the round's time.
    assert (found["--dataset-name"], found["--request-rate"]) == ("prefix_repetition", "2.25")
    assert found["--prefix-repetition-prefix-len"] == "80"
    assert "--max-concurrency" not in found


def test_a_files_prompts_come_in_an_order_of_the_loads_own_and_not_from_the_cache(
    tmp_path: Path,
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Hi {n}"}) + "\n" for n in range(8)))
    serve = Serve()
    prompts = {"kind": "requests", "file": str(file), "output_tokens": 4}
    measured = generator(tmp_path, serve, **prompts)
    for seed in (1, 2):
        measured.measure(endpoint(), requests=12, seed=seed)
    first, second = serve.sent
    assert {each.prompt for each in first} == {f"Hi {n}" for n in range(8)}
    assert [each.prompt for each in first[:8]] != [each.prompt for each in second[:8]]
    sent = [(each.prompt, each.request_overrides["cache_salt"]) for each in first + second]
    assert len(set(sent)) == 24
