"""`prepare gate` of endpoints that die while they are asked or loaded, and then come back."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pretend_stages
import pytest
from endpoint_stand_in import EndpointStandIn
from hypothesis import given, settings
from hypothesis import strategies as st
from listener import Listener
from pretend_stages import PretendModels, PretendRun, PretendServers

from artifacts.evidence.verify import check_run
from artifacts.requests import GateRequest
from artifacts.run_record import RunReport, VariantReport
from eval_gates.ask import RateLimitError
from eval_gates.speed.rules import MAX_OWN
from pipeline.environments.settings import Settings
from pipeline.run import gate as endpoint_gate
from pipeline.run import pieces
from prepare.errors import ExitCode
from prepare.store import Store

BLOCKS = 5
POLICY = {
    "name": "p",
    "summary": "s",
    "suites": {"code": {"kind": "humaneval", "margins": {"fp8": 0.1}}},
    "speed": {
        "ratio": {"min_ratio": 0.8, "workloads": ["small"], "blocks": BLOCKS},
        "workloads": {
            "small": {
                **{"kind": "random", "input_tokens": 8, "output_tokens": 4, "seconds": 1},
                "arrivals": {"concurrency": 4},
            }
        },
    },
}
SIDES = ("baseline", "candidate")


def equal(variant: str, suite: str, number: int) -> float:
    return float(number % 2)


@dataclass
class Gate:
    """A user who gives `prepare gate` the same two endpoints again and again."""

    root: Path
    models: PretendModels
    urls: tuple[str, str]

    @property
    def settings(self) -> Settings:
        return Settings(home=self.root / "home", store=self.root / "store")

    def run(self, deployment_id: str | None = "s", remeasure: tuple[str, ...] = ()) -> RunReport:
        tokenizer = self.root / "tokenizer"
        tokenizer.mkdir(exist_ok=True)
        for name in ("tokenizer_config.json", "tokenizer.json"):
            (tokenizer / name).write_text("{}")
        policy = self.root / "policy.yaml"
        policy.write_text(json.dumps(POLICY))
        request = GateRequest(
            baseline=self.urls[0],
            candidate=self.urls[1],
            policy=str(policy),
            tokenizer=tokenizer,
            deployment_id=deployment_id,
            remeasure=remeasure,
        )
        self.models.open_now = set(SIDES)
        return endpoint_gate.run_gate(request, self.settings, Listener())

    def verdict(self, **options: str | None) -> VariantReport:
        (found,) = self.run(**options).variants
        return found


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    with EndpointStandIn() as baseline, EndpointStandIn() as candidate:
        yield baseline.url, candidate.url


@pytest.fixture(autouse=True, scope="module")
def _pretend() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoint_gate, "Run", PretendRun)
        patch.setattr(endpoint_gate, "Servers", PretendServers)
        patch.setattr(pieces, "ask_first_rows", lambda *_: None)
        yield


def gate_on(root: Path, urls: tuple[str, str]) -> Gate:
    models = PretendModels(equal, 164)
    PretendRun.models = models
    return Gate(root, models, urls)


@pytest.mark.parametrize("when", ["load", "ask"])
def test_the_second_death_of_a_candidate_fails_its_gates(
    tmp_path: Path, urls: tuple[str, str], when: str
) -> None:
    gate = gate_on(tmp_path, urls)
    gate.models.is_lost = lambda variant, moment: (variant, moment) == ("candidate", when)
    assert [gate.run().exit_code for _ in range(2)] == [
        ExitCode.EXPECTED_ERROR,
        ExitCode.GATES_FAILED if when == "load" else ExitCode.EXPECTED_ERROR,
    ]
    gate.models.is_lost = lambda variant, moment: False
    found = gate.verdict()
    (speed,) = found.speed
    assert (found.verdict, speed.verdict) == ("fail", "fail")
    assert speed.server_starts["candidate"].failed == 2
    assert found.history is not None
    assert found.history.starts.failed == 2
    assert gate.verdict() == found


def test_one_death_is_told_and_the_same_command_goes_on(
    tmp_path: Path, urls: tuple[str, str]
) -> None:
    gate = gate_on(tmp_path, urls)
    gate.models.dies_once = {"candidate"}
    assert gate.run().exit_code == ExitCode.EXPECTED_ERROR
    report = gate.run()
    (found,) = report.variants
    assert (report.exit_code, found.verdict) == (ExitCode.SUCCESS, "pass")
    count = found.speed[0].server_starts["candidate"]
    assert (count.failed, count.tried) == (1, 2)
    assert count.words in found.reason
    assert all(not check.differences for check in check_run(report, Store(tmp_path / "store")))


def test_a_limit_of_requests_is_no_death(
    tmp_path: Path, urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gate_on(tmp_path, urls)
    gate.models.is_lost = lambda variant, moment: (variant, moment) == ("candidate", "ask")
    with monkeypatch.context() as patch:
        patch.setattr(pretend_stages, "UnansweredError", RateLimitError)
        assert [gate.run().exit_code for _ in range(2)] == 2 * [ExitCode.EXPECTED_ERROR]
    gate.models.is_lost = lambda variant, moment: False
    found = gate.verdict()
    assert (found.verdict, found.speed[0].server_starts["candidate"].failed) == ("pass", 0)


def test_a_baseline_that_dies_twice_shows_nothing(tmp_path: Path, urls: tuple[str, str]) -> None:
    gate = gate_on(tmp_path, urls)
    gate.models.dies_under_load = {"baseline"}
    assert gate.run().exit_code == ExitCode.EXPECTED_ERROR
    report = gate.run()
    (found,) = report.variants
    assert (report.exit_code, found.speed[0].verdict) == (ExitCode.UNDECIDED, "undecided")


def test_a_new_deployment_and_a_gate_measured_again_count_their_own(
    tmp_path: Path, urls: tuple[str, str]
) -> None:
    gate = gate_on(tmp_path, urls)
    gate.models.dies_under_load = {"candidate"}
    for _ in range(MAX_OWN):
        gate.run()
    gate.models.dies_under_load = set()
    assert gate.verdict().verdict == "fail"
    (again,) = gate.run(remeasure=("ratio.small",)).variants
    assert (again.verdict, again.speed[0].server_starts["candidate"].failed) == ("pass", 0)
    other = gate.verdict(deployment_id="mended")
    assert (other.verdict, other.speed[0].server_starts["candidate"].failed) == ("pass", 0)
    assert other.history is not None
    assert other.history.attempt > 1


@settings(max_examples=4)
@given(seed=st.integers(0, 2**20), share=st.sampled_from([0.1, 0.2, 0.4]))
def test_an_endpoint_is_not_measured_until_it_works(
    tmp_path_factory: pytest.TempPathFactory, urls: tuple[str, str], seed: int, share: float
) -> None:
    gate = gate_on(tmp_path_factory.mktemp("gate"), urls)
    chance = random.Random(seed)
    deaths = 0

    def is_lost(variant: str, moment: str) -> bool:
        nonlocal deaths
        dies = variant == "candidate" and moment == "load" and chance.random() < share
        deaths += dies
        return dies

    gate.models.is_lost = is_lost
    for _ in range(10):
        report = gate.run()
        if report.exit_code != ExitCode.EXPECTED_ERROR:
            break
    (found,) = report.variants
    assert (found.verdict == "fail") == (deaths >= MAX_OWN)
    assert found.speed[0].server_starts["candidate"].failed == deaths
