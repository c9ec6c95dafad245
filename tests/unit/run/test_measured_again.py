from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_run import ONE, FakeRun, equal, lost, policy
from pretend_stages import PretendModels
from some_attempt import attempts_in

from artifacts.run_record import VariantReport
from pipeline.plan.screening_plan import screening_policy


def levels(run: FakeRun, variant: str = ONE) -> dict[int, float]:
    records = [r.parameters for r in run.store.records("evaluate") if r.variant == variant]
    return {each["measurement_number"]: each["rule"]["alpha"] for each in records}


def forget(run: FakeRun, *folders: str) -> None:
    for folder in folders:
        shutil.rmtree(run.root / folder)


def attempt(found: VariantReport) -> int:
    assert found.history is not None
    return found.history.attempt


def test_kept_answers_are_used_again(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "store")
    before = run.verdict()
    asked = run.asked(ONE)
    forget(run, "stages/evaluate", "stages/judge")
    assert run.verdict() == before
    assert run.asked(ONE) == asked
    assert len(attempts_in(run.store)) == 1


def test_a_run_whose_candidate_never_answered_is_no_attempt(tmp_path: Path) -> None:
    broken = FakeRun(tmp_path / "store", PretendModels(equal, broken={ONE}))
    broken.run()
    assert attempts_in(broken.store) == []
    healed = FakeRun(tmp_path / "store")
    assert attempt(healed.verdict()) == 1
    (found,) = attempts_in(healed.store)
    assert found.run == healed.report.run


def test_another_variant_is_another_attempt_at_the_same_level(tmp_path: Path) -> None:
    FakeRun(tmp_path / "store").run()
    second = FakeRun(tmp_path / "store", recipes=("two",))
    found = second.verdict("two")
    assert attempt(found) == 2
    assert "attempt 2 against this baseline: 1 variant was tried before" in found.reason
    assert levels(second, "two") == {1: pytest.approx(0.05)}


def test_a_policy_with_attempts_divides_alpha_and_refuses_more(tmp_path: Path) -> None:
    def run(name: str) -> FakeRun:
        made = FakeRun(tmp_path / "store", recipes=(name,))
        made.policy = made.policy.model_copy(update={"attempts": 2})
        return made

    for name in (ONE, "two"):
        made = run(name)
        made.run()
        assert levels(made, name) == {1: pytest.approx(0.025)}
    assert run(ONE).verdict().verdict == "pass"
    third = run("three").verdict("three")
    assert third.verdict == "error"
    assert "allows 2 attempts" in third.reason


def test_a_gate_is_measured_again_on_request(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "store", PretendModels(lost(2)))
    assert run.verdict().verdict == "fail"
    asked = run.asked(ONE)
    run.models.score = equal
    run.run(frozenset({"code"}))
    assert run.asked(ONE) > asked
    assert levels(run) == {1: pytest.approx(0.05), 2: pytest.approx(0.05)}
    found = run.report.variants[0]
    assert found.verdict == "pass"
    assert "1 gates measured again" in found.reason
    assert [each.measured for each in attempts_in(run.store)] == [{}, {"code": 2}]
    # The same command without it goes on with the latest.
    assert {stage.status for stage in run.run().stages} == {"reused"}


def test_the_verdict_records_an_attempt_that_nothing_else_did(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "store")
    run.run()
    forget(run, "attempts", "stages/judge")
    run.run()
    (found,) = attempts_in(run.store)
    assert found.run == run.report.run


def test_a_screened_variant_is_a_tried_one(tmp_path: Path) -> None:
    """Else the best of many that were screened would be a first attempt."""
    models = PretendModels(equal, 64, nats=dict.fromkeys(("baseline", ONE, "two"), 1.0))
    screened = FakeRun(tmp_path / "store", models, recipes=(ONE, "two"), screen=True)
    screened.policy = screening_policy(screened.policy)
    screened.run()
    (attempt_file,) = attempts_in(screened.store)
    assert (attempt_file.kind, set(attempt_file.trial.variants)) == ("screen", {ONE, "two"})
    made = FakeRun(tmp_path / "store")
    made.policy = made.policy.model_copy(update={"attempts": 2})
    found = made.verdict()
    assert (found.verdict, "allows 2 attempts" in found.reason) == ("error", True)
    assert FakeRun(tmp_path / "store").verdict().history is not None


@pytest.mark.parametrize("changes", [{"margins": {"fp8": 0.15}}, {"questions": 300}])
def test_the_same_model_by_other_rules_is_the_same_variant(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    FakeRun(tmp_path / "store").run()
    found = FakeRun(tmp_path / "store", policy=policy(**changes)).verdict()
    assert found.history is not None
    assert (found.history.attempt, found.history.variants) == (2, 0)
