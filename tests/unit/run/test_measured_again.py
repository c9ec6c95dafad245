"""A command that is repeated after its folders were deleted gets no fresh chance."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_run import ONE, FakeRun, equal, lost
from pretend_stages import PretendModels

from artifacts.run_record import RunReport
from pipeline.plan.plan import Plan
from pipeline.stages.attempts import AttemptLedger

FOLDERS = ("stages", "stages/evaluate", "stages/quantize", "answers")


def measured(run: FakeRun, variant: str = ONE) -> dict[int, float]:
    """By number of the measurement, the level that it was decided at."""
    records = [r.parameters for r in run.store.records("evaluate") if r.variant == variant]
    return {each["measurement"]: each["rule"]["alpha"] for each in records}


def forget(run: FakeRun, *folders: str) -> None:
    for folder in folders:
        shutil.rmtree(run.root / folder)


def test_all_that_was_measured_is_deleted(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "store")
    assert run.verdict().attempt == 1
    for number, share in ((2, 0.1 / 2), (3, 0.1 / 6)):
        forget(run, "stages", "answers", "runs")
        assert run.verdict().attempt == 1
        assert measured(run) == {number: pytest.approx(0.05 * share)}


def test_a_stage_whose_answers_are_kept_is_no_new_measurement(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "store")
    before = run.verdict()
    forget(run, "stages/evaluate", "stages/judge")
    assert run.verdict() == before
    assert list(measured(run)) == [1]


def test_the_answers_alone_are_deleted(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "store")
    run.run()
    forget(run, "answers")
    run.run()
    assert sorted(measured(run)) == [1, 2]


def test_the_baselines_answers_are_no_chance_either(tmp_path: Path) -> None:
    """Else they could be thrown away until they are low, before the candidate is asked."""
    run = FakeRun(tmp_path / "store", PretendModels(equal, broken={ONE}))
    run.run()
    assert not AttemptLedger(run.store).attempts(attempt_of(run.plan()))
    forget(run, "answers", "stages/evaluate")
    run.models.broken = set()
    run.run()
    assert measured(run) == {2: pytest.approx(0.05 * 0.1 / 2)}


def attempt_of(plan: Plan):  # type: ignore[no-untyped-def]
    assert plan.attempt is not None
    return plan.attempt.scope


def test_weights_that_were_made_again_otherwise_are_another_measurement(tmp_path: Path) -> None:
    """A key names what goes into a stage, and quantizing is not bit-stable on a GPU."""
    run = FakeRun(tmp_path / "store")
    run.run()
    forget(run, "stages/quantize", "stages/check_weights", "stages/evaluate")
    run.models.weights = "other"
    report = run.run()
    assert list(measured(run)) == [2]
    assert [note for note in report.notes if "planned again" in note]


def test_a_run_whose_candidate_never_answered_is_no_attempt(tmp_path: Path) -> None:
    broken = FakeRun(tmp_path / "store", PretendModels(equal, broken={ONE}))
    broken.run()
    ledger = AttemptLedger(broken.store)
    assert list(ledger.all()) == []
    healed = FakeRun(tmp_path / "store")
    assert healed.verdict().attempt == 1
    (attempt,) = ledger.all()
    assert attempt.run == healed.report.run
    assert list(measured(healed)) == [1]


def test_another_variant_is_another_attempt_and_is_told_beside_the_verdict(tmp_path: Path) -> None:
    FakeRun(tmp_path / "store").run()
    second = FakeRun(tmp_path / "store", recipes=("two",))
    found = second.verdict("two")
    assert found.attempt == 2
    assert "at most 0.1 " in found.reason
    assert measured(second, "two") == {1: pytest.approx(0.045)}


def test_a_rate_that_is_spent_over_attempts(tmp_path: Path) -> None:
    levels = []
    for name in (ONE, "two"):
        run = FakeRun(tmp_path / "store", recipes=(name,))
        run.policy = run.policy.model_copy(update={"attempts": "spend"})
        run.run()
        levels += measured(run, name).values()
    assert levels == [pytest.approx(0.9 * 0.05 / 2), pytest.approx(0.9 * 0.05 / 4)]


def test_a_gate_is_measured_again_on_request(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "store", PretendModels(lost(2)))
    assert run.verdict().verdict == "fail"
    asked = run.asked(ONE)
    run.models.score = equal
    run.run(frozenset({"code"}))
    assert run.asked(ONE) > asked
    assert max(measured(run)) == 2
    # The same command without it goes on with the latest.
    assert statuses(run.run()) == {"reused"}


def statuses(report: RunReport) -> set[str]:
    return {stage.status for stage in report.stages}


def test_a_verdict_is_decided_at_its_own_level(tmp_path: Path) -> None:
    """'decided at 26 of n = 72' was of the policy's level, and 72 were asked for the attempt's."""
    for name in (ONE, "two", "three"):
        run = FakeRun(tmp_path / "store", recipes=(name,))
        run.policy = run.policy.model_copy(update={"attempts": "spend"})
        (gate,) = run.verdict(name).gates
        assert gate.alpha == pytest.approx(measured(run, name)[1])
        assert gate.decided_at is not None
        assert gate.n - gate.decided_at < 16  # questions of one batch


def test_the_key_of_a_verdict_is_the_same_whichever_run_began_the_attempt(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "other"):
        run = FakeRun(tmp_path / name / "store")
        run.run()
        keys.append([record.key for record in run.store.records("judge")])
    assert len(keys[0]) == 1
    assert keys[0] == keys[1]


def test_an_attempt_that_the_verdict_is_the_first_to_count_has_the_id_of_its_run(
    tmp_path: Path,
) -> None:
    run = FakeRun(tmp_path / "store")
    run.run()
    forget(run, "attempts", "stages/judge")
    run.run()
    (attempt,) = AttemptLedger(run.store).all()
    assert attempt.run == run.report.run
