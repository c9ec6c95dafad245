"""A run with a suite of decisions: the baseline's two starts, its gates, and what verify finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_run import ONE, TWO, FakeRun
from pretend_recheck import Machine
from pretend_stages import PretendModels
from some_node import NODE

from artifacts.evidence.verify import check_bundle
from artifacts.registry import Registry
from eval_gates.decisions.gate import DecisionResult
from eval_gates.decisions.parts import TOOL, tool_label
from eval_gates.decisions.task import AS_LOGGED
from eval_gates.decisions.turn_decision import TurnDecision, kept_kinds
from prepare.store import Store
from recipes.policy import Policy

POLICY = Policy.model_validate(
    {
        "name": "p",
        "summary": "s",
        "suites": {
            "agents": {
                "kind": "decisions",
                "margins": {"fp8": 0.1},
                "kinds": {
                    "calls": {"margins": {"fp8": 0.1}, "tier": "critical"},
                    "declines": {"margins": {"fp8": 0.2}, "tier": "critical"},
                },
            }
        },
    }
)
REFERENCE = "agents again"  # as it is shown
Decide = Callable[[str, int], TurnDecision]


class DecidingModels(PretendModels):
    """Models whose every decision a test makes; two turns a session."""

    def __init__(self, decide: Decide, questions: int = 400) -> None:
        super().__init__(lambda variant, suite, number: 1.0, questions=questions)
        self.decide = decide
        self.lives: list[tuple[str, int]] = []  # suite, and server starts before it was asked

    def questions_of(self, suite: str) -> list[dict[str, Any]]:
        return [
            {"id": str(n), "cluster": f"s{n // 2}", "group": AS_LOGGED}
            for n in range(self.questions)
        ]

    def answer(self, variant: str, suite: str, question: dict[str, Any]) -> dict[str, Any]:
        life = (suite, self.served.count("baseline"))
        if variant == "baseline" and life not in self.lives:
            self.lives.append(life)
        number = int(question["id"])
        reference = self.decide(REFERENCE, number)
        decision = self.decide(suite if suite == REFERENCE else variant, number)
        return {
            "answer": f"digest {variant} {number}",
            "score": float(decision == reference),
            "group": question["group"],
            **kept_kinds(reference, decision),
            **({TOOL: tool_label(reference.tool)} if reference.calls else {}),
        }


def always_calls(arm: str, number: int) -> TurnDecision:
    return TurnDecision("find", "{}")


def sound(arm: str, number: int) -> TurnDecision:
    """Half of the sessions call, a quarter is declined."""
    session = number // 2
    if session % 2:
        return TurnDecision("find", "{}")
    return TurnDecision(declines=session % 4 == 0)


def run_of(folder: Path, decide: Decide) -> FakeRun:
    run = FakeRun(folder / "store", DecidingModels(decide), policy=POLICY)
    run.run()
    return run


def gates_of(run: FakeRun) -> dict[str, str]:
    (variant,) = run.report.variants
    return {gate.name: str(gate.verdict) for gate in variant.gates}


def test_an_equal_variant_passes_every_gate(tmp_path: Path) -> None:
    run = run_of(tmp_path, sound)
    assert gates_of(run) == {
        "agents": "pass",
        "agents calls": "pass",
        "agents declines": "pass",
    }
    assert run.report.variants[0].verdict == "pass"


def test_the_baseline_is_asked_at_two_starts(tmp_path: Path) -> None:
    run = run_of(tmp_path, sound)
    assert run.models.served == ["baseline", "baseline", ONE]
    assert isinstance(run.models, DecidingModels)
    assert run.models.lives == [(REFERENCE, 1), ("agents", 2)]


def test_all_turns_are_asked_though_the_first_look_decides(tmp_path: Path) -> None:
    run = run_of(tmp_path, sound)
    assert [asked for _, _, asked in run.models.asked] == [400, 400, 400]


def test_a_variant_that_calls_no_more_fails_by_that_gate(tmp_path: Path) -> None:
    def decide(arm: str, number: int) -> TurnDecision:
        is_lost = arm == ONE and number // 2 % 10 == 1  # a fifth of the sessions that call
        return TurnDecision() if is_lost else sound(arm, number)

    run = run_of(tmp_path, decide)
    assert gates_of(run)["agents calls"] == "fail"
    (variant,) = run.report.variants
    assert variant.verdict == "fail"
    assert "agents calls" in variant.reason
    found = [gate for gate in variant.gates if isinstance(gate, DecisionResult)]
    assert [(gate.n, gate.turns) for gate in found] == [(100, 200), (50, 100)]


def test_a_variant_that_refuses_less_fails_by_that_gate_alone(tmp_path: Path) -> None:
    def decide(arm: str, number: int) -> TurnDecision:
        found = sound(arm, number)
        return TurnDecision() if arm == ONE and found.declines and number // 2 % 8 == 0 else found

    gates = gates_of(run_of(tmp_path, decide))
    assert gates["agents declines"] == "fail"
    assert gates["agents calls"] == "pass"


def test_noise_of_the_baseline_itself_is_no_loss(tmp_path: Path) -> None:
    def decide(arm: str, number: int) -> TurnDecision:
        place = (REFERENCE, "baseline", ONE).index(arm)
        return TurnDecision("other", "{}") if number % 50 == place else sound(arm, number)

    run = run_of(tmp_path, decide)
    assert gates_of(run)["agents"] == "pass"
    gate = run.report.variants[0].quality[0]
    assert gate.noise_floor is not None
    assert gate.noise_floor.flips == 16
    assert gate.baseline == pytest.approx(gate.candidate)


def test_the_verdict_is_computed_again_from_the_bundle(tmp_path: Path) -> None:
    run = run_of(tmp_path, sound)
    assert check_bundle(run.bundle(ONE)).problems == ()


@pytest.mark.parametrize("how", ["deleted", "cut"])
def test_private_texts_that_are_gone_end_the_next_variant(tmp_path: Path, how: str) -> None:
    """Without them it would be compared with itself."""
    run = run_of(tmp_path, sound)
    for file in (run.root / "stages" / "evaluate").glob("*/texts.jsonl"):
        if how == "deleted":
            file.unlink()
        else:
            file.write_text(file.read_text().partition("\n")[0])
    run.recipes = (TWO,)
    (variant,) = run.run().variants
    assert variant.verdict == "error"
    assert "texts.jsonl" in variant.reason


def test_a_record_tells_how_many_sessions_its_gates_are_about(tmp_path: Path) -> None:
    """A recheck assumed that half of the sessions call, and was refused where all of them do."""
    models = DecidingModels(always_calls, questions=100)
    hardware = NODE.hardware("cpu").model_dump()
    shown = POLICY.model_dump(mode="json")
    del shown["suites"]["agents"]["kinds"]["declines"]
    policy = Policy.model_validate(shown)
    made = FakeRun(tmp_path / "store", models, policy=policy, hardware=hardware)
    made.run()
    made.promote(variant=ONE)
    site = Machine(Store(made.root), Registry(f"sqlite:///{made.root}/registry.db"), models)
    site.upgrade()
    outcome = site.recheck()
    assert (outcome.exit_code, outcome.error) == (0, None)
