from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from some_attempt import some_trial

from pipeline.stages.attempts import AttemptLedger, Counted, trial_of
from prepare.errors import StoreError, UsageError
from prepare.store import Store
from recipes.catalog import load_policy


@pytest.fixture
def ledger(tmp_path: Path) -> AttemptLedger:
    return AttemptLedger(Store(tmp_path))


def counted(gate: str = "mmlu", run: str = "r1", **changes: object) -> Counted:
    return Counted(trial=some_trial(**changes), gate=gate, run=run)


def test_the_same_variants_again_are_one_attempt(ledger: AttemptLedger) -> None:
    for run, gate in (("r1", "mmlu"), ("r2", "mmlu"), ("r2", "code")):
        ledger.begin(counted(gate, run))
    (attempt,) = ledger.attempts(some_trial().baseline)
    assert (attempt.number, attempt.run, attempt.measured) == (1, "r1", {})


def test_other_variants_or_criteria_are_another(ledger: AttemptLedger) -> None:
    ledger.begin(counted())
    ledger.begin(counted(variants={"a": "2"}))
    ledger.begin(counted(criteria="y"))
    ledger.begin(counted(baseline={"checkpoint": "other"}))
    assert len(ledger.attempts(some_trial().baseline)) == 3


def test_history_counts_what_was_judged_before(ledger: AttemptLedger) -> None:
    assert ledger.history(some_trial()).words == ""
    ledger.begin(counted())
    other = some_trial(variants={"a": "2", "b": "3"})
    ledger.begin(Counted(trial=other, gate="mmlu"))
    assert ledger.history(some_trial()).attempt == 1
    found = ledger.history(other)
    assert (found.attempt, found.variants, found.measurements) == (2, 1, 0)
    assert "attempt 2 against this baseline: 1 variant was" in found.words


def test_a_gate_measured_again_is_an_attempt(ledger: AttemptLedger) -> None:
    ledger.begin(counted())
    assert ledger.latest_measurement(some_trial(), "mmlu") == (1, {"r1"})
    ledger.begin(counted(run="r2"), 2)
    ledger.begin(counted(run="r2"), 2)
    first, second = ledger.attempts(some_trial().baseline)
    assert (first.measured, second.measured) == ({}, {"mmlu": 2})
    assert ledger.latest_measurement(some_trial(), "mmlu") == (2, {"r2"})
    assert ledger.latest_measurement(some_trial(), "code")[0] == 1
    assert "0 variants were tried before and 1 gates" in ledger.history(some_trial()).words
    ledger.begin(counted(run="r3", policy="renamed"), 3)
    assert ledger.history(some_trial()).measurements == 2


def test_a_policy_with_attempts_refuses_more(ledger: AttemptLedger) -> None:
    for number in (1, 2):
        trial = some_trial(attempts=2, variants={"a": str(number)})
        ledger.check_allowed(trial)
        ledger.begin(Counted(trial=trial, gate="mmlu", run=f"run-{number}"))
    ledger.check_allowed(some_trial(attempts=2, variants={"a": "1"}))
    third = some_trial(attempts=2, variants={"a": "3"})
    with pytest.raises(UsageError, match="allows 2 attempts") as refused:
        ledger.check_allowed(third)
    assert "prepare runs run-2" in str(refused.value.hint)
    with pytest.raises(UsageError, match="allows 2 attempts"):
        ledger.begin(Counted(trial=third, gate="mmlu"))
    # A gate measured again is one, too.
    with pytest.raises(UsageError, match="allows 2 attempts"):
        ledger.begin(Counted(trial=some_trial(attempts=2, variants={"a": "1"}), gate="mmlu"), 2)
    ledger.check_allowed(third.model_copy(update={"baseline": {"checkpoint": "other"}}))


SERVED = {f"v{n}": str(n) for n in range(4)}


@pytest.mark.parametrize("kind", ["gate", "screen"])
def test_variants_that_others_showed_use_up_attempts(ledger: AttemptLedger, kind: Any) -> None:
    """The five best of 20 that were seen before passed `strict` in three times its rate."""
    ledger.begin(Counted(trial=some_trial(variants=SERVED), gate=""), kind=kind)
    best = some_trial(attempts=4, variants={"v0": "0"})
    with pytest.raises(UsageError, match="allows 4 attempts"):
        ledger.check_allowed(best)
    roomy = some_trial(attempts=5, variants={"v0": "0"})
    ledger.begin(Counted(trial=roomy, gate="mmlu"))
    with pytest.raises(UsageError, match="5 were made"):
        ledger.check_allowed(some_trial(attempts=5, variants={"v1": "1"}))


def test_the_first_attempt_fixes_their_number(ledger: AttemptLedger) -> None:
    ledger.begin(Counted(trial=some_trial(attempts=2), gate="mmlu"))
    for other in (1, 5):
        with pytest.raises(UsageError, match="fixed 'attempts: 2'"):
            ledger.check_allowed(some_trial(attempts=other, criteria="y"))
    ledger.check_allowed(some_trial(attempts=2, criteria="y"))


def test_a_gate_measured_again_by_another_policy_uses_up_an_attempt(ledger: AttemptLedger) -> None:
    ledger.begin(counted())
    ledger.begin(counted(), 2)
    with pytest.raises(UsageError, match="2 were made"):
        ledger.check_allowed(some_trial(attempts=2, criteria="y"))


def test_concurrent_runs_get_different_numbers(tmp_path: Path) -> None:
    def begin(name: str) -> None:
        AttemptLedger(Store(tmp_path)).begin(counted(variants={"a": name}))

    threads = [threading.Thread(target=begin, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = AttemptLedger(Store(tmp_path)).attempts(some_trial().baseline)
    assert [each.number for each in found] == list(range(1, 9))
    assert len({each.trial.variants["a"] for each in found}) == 8


def test_a_lost_or_damaged_record_is_an_error(ledger: AttemptLedger, tmp_path: Path) -> None:
    ledger.begin(counted())
    ledger.begin(counted(variants={"a": "2"}))
    first, _ = sorted((tmp_path / "attempts").glob("*/*.json"))
    content = first.read_bytes()
    first.write_bytes(content[:20])
    with pytest.raises(StoreError, match="cannot be read"):
        ledger.attempts(some_trial().baseline)
    first.unlink()
    with pytest.raises(StoreError, match="attempt 1 is gone"):
        ledger.begin(counted())
    first.write_bytes(content)
    assert len(ledger.attempts(some_trial().baseline)) == 2


def test_criteria_are_what_decides() -> None:
    policy = load_policy("default")
    trial = trial_of({"c": "1"}, {"a": "1"}, policy)

    def changed(suite: str, **changes: object) -> bool:
        suites = {**policy.suites, suite: policy.suites[suite].model_copy(update=changes)}
        other = policy.model_copy(update={"suites": suites})
        return trial_of({"c": "1"}, {"a": "1"}, other).criteria != trial.criteria

    assert changed("mmlu", questions=1000)
    assert changed("mmlu", tier="supporting")
    assert not changed("mmlu", concurrency=8)
    assert not changed("mmlu", usual={})
    renamed = policy.model_copy(update={"name": "x", "summary": "y"})
    assert trial_of({"c": "1"}, {"a": "1"}, renamed).criteria == trial.criteria
