"""A variant that answers as well and as fast, in more tokens: only `cost` fails it.

A logits processor lowers the end token's logit on the candidate's server. Both sides have the demo
model. With a difference of 0 the same server passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from port_server import EXACT, served
from prepare_command import prepare

from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.server import Server
from recipes.schema import ServingProfile

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(1800)]

PLUGIN = Path(__file__).parent / "longer_answers"
LOWER = 3.6  # measured: answers have twice as many tokens, some as many as they may
THINGS = (
    *("cat", "dog", "horse", "bird", "fish", "river", "mountain", "forest", "city", "house"),
    *("garden", "flower", "tree", "car", "train", "ship", "book", "song", "teacher", "farmer"),
    *("lamp", "bridge", "island", "clock"),
)
KINDS = (
    *("small", "big", "old", "young", "red", "blue", "green", "quiet", "loud", "fast", "slow"),
    *("happy", "sad", "cold", "warm", "long", "short", "dark", "bright", "strong", "weak", "clean"),
    *("tall", "tiny", "gentle", "wild"),
)
POLICY = {
    "name": "work",
    "summary": "sentences with a word in them, and the tokens that they take",
    "suites": {
        "sentences": {
            **{"kind": "ifeval", "prompt_format": "chat", "max_tokens": 160},
            **{"margins": {"fp8": 0.05}},
        }
    },
    "cost": {"suites": ["sentences"], "max_ratio": {"fp8": 1.1}},
    # Two of the same servers: a half leaves room for other programs on the machine.
    "speed": {
        "ratio": {"min_ratio": 0.5, "workloads": ["short"], "blocks": 5},
        "workloads": {
            "short": {
                **{"kind": "random", "input_tokens": 16, "output_tokens": 8, "seconds": 3},
                "arrivals": {"concurrency": 2},
            }
        },
    },
}


class Candidate(NamedTuple):
    """A server, and the file that holds the difference."""

    server: Server
    lower: Path


@pytest.fixture(scope="module")
def candidate(
    demo_model: Path, cpu_profile: ServingProfile, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Candidate]:
    """The demo model as the shared server has it, with the processor."""
    folder = tmp_path_factory.mktemp("longer_answers")
    lower = folder / "lower"
    lower.write_text("0")
    changes = {**EXACT, "logits-processors": "longer_answers:LongerAnswers"}
    variables = {"PYTHONPATH": str(PLUGIN), "LONGER_ANSWERS": str(lower)}
    log = folder / "server.log"
    with served(demo_model, cpu_profile, log, variables, changes) as server:
        yield Candidate(server, lower)


@pytest.fixture(scope="module")
def rows(server: Server) -> list[dict[str, Any]]:
    """Requests that the demo model answers shortly; it never ends some of its answers."""
    made = [
        {
            "prompt": f"Write one short sentence about a {kind} {thing}.",
            "instruction_id_list": ["keywords:existence"],
            "kwargs": [{"keywords": [thing]}],
        }
        for thing in THINGS
        for kind in KINDS
    ]

    def ends(row: dict[str, Any]) -> bool:
        message = {"role": "user", "content": row["prompt"]}
        asked = {"model": SERVED_NAME, "messages": [message], "max_tokens": 80, "temperature": 0}
        url = f"{server.url}/v1/chat/completions"
        answer = httpx.post(url, json=asked, timeout=600).raise_for_status().json()
        return bool(answer["choices"][0]["finish_reason"] == "stop")

    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(ends, made))
    return [row for row, has_ended in zip(made, ended, strict=True) if has_ended]


def test_longer_answers_fail_cost_alone(
    server: Server,
    candidate: Candidate,
    rows: list[dict[str, Any]],
    demo_model: Path,
    tmp_path: Path,
) -> None:
    off = judge(server, candidate, rows, 0.0, demo_model, tmp_path / "off")
    assert off["sentences"]["verdict"] == "pass"
    assert off["cost sentences"]["verdict"] == "pass"
    assert off["cost sentences"]["estimate"] == pytest.approx(1, abs=0.02)

    on = judge(server, candidate, rows, LOWER, demo_model, tmp_path / "on")
    assert on["sentences"]["verdict"] == "pass"
    assert {name for name, gate in on.items() if gate["verdict"] == "fail"} == {"cost sentences"}
    cost = on["cost sentences"]
    assert cost["verdict"] == "fail"
    assert cost["tokens"]["ratio"] > 1.3  # 1.1 is allowed


def judge(
    baseline: Server,
    candidate: Candidate,
    rows: list[dict[str, Any]],
    lower: float,
    tokenizer: Path,
    store: Path,
) -> dict[str, Any]:
    """Return the reports of all gates by name."""
    candidate.lower.write_text(str(lower))
    store.mkdir()
    data, policy = store / "data", store / "policy.yaml"
    data.mkdir()
    (data / "ifeval_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    policy.write_text(yaml.safe_dump(POLICY))
    answer = prepare(
        store,
        "gate",
        *("--baseline", baseline.url, "--baseline-model", SERVED_NAME),
        *("--candidate", candidate.server.url, "--candidate-model", SERVED_NAME),
        *("--tokenizer", str(tokenizer), "--policy", str(policy)),
        *("--eval-data", str(data), "--json"),
    )
    assert answer.returncode in (0, 4, 5), answer.stderr[-3000:]
    (variant,) = json.loads(answer.stdout)["variants"]
    reasons = "\n".join(f"{gate['name']}: {gate['reason']}" for gate in variant["gates"])
    assert answer.returncode == (4 if lower else 0), reasons
    return {gate["name"]: gate for gate in variant["gates"]}
