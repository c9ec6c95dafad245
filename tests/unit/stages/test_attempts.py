"""Attempts and measurements are counted over all runs, and none gets a chance for nothing."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from some_attempt import SCOPE, some_attempt

from artifacts.evidence.rule_check import find_rule_mismatches
from eval_gates.gate_rule import gate_rule_of
from eval_gates.speed import proportion_test
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.multiplicity import attempt_share, bound_over_attempts, gate_level
from eval_gates.statistics.sequential import log_evidence
from pipeline.core.errors import AttemptChangedError, StoreError
from pipeline.core.stage_record import StageRecord
from pipeline.core.store import Store
from pipeline.stages.attempts import (
    NOTHING,
    Attempt,
    AttemptLedger,
    AttemptScope,
    Counted,
    Remeasured,
    variant_key,
)
from pipeline.stages.evaluate import EvaluateParameters
from pipeline.stages.judge import JudgeParameters
from recipes.catalog import load_profile
from recipes.policy import Policy

REPLAYS, QUESTIONS = 1000, 300


def policy(**changes: Any) -> Policy:
    mine = {"kind": "mmlu", "margins": {"fp8": 0.01}, **changes}
    neighbor = {"kind": "mmlu", "margins": {"fp8": 0.5}, "tier": "advisory"}
    return Policy.model_validate(
        {"name": "p", "summary": "s", "suites": {"mine": mine, "neighbor": neighbor}}
    )


@pytest.fixture
def ledger(tmp_path: Path) -> AttemptLedger:
    return AttemptLedger(Store(tmp_path / "store"))


def begin(ledger: AttemptLedger, variants: dict[str, str], scope: AttemptScope = SCOPE) -> Attempt:
    """The attempt that these variants are, counted."""
    attempt = ledger.foresee(scope, variants, policy(), "run")
    ledger.begin_attempt(attempt)
    return attempt


class TestAttempts:
    def test_what_is_new_is_an_attempt_and_what_is_not_is_none(
        self, ledger: AttemptLedger, tmp_path: Path
    ) -> None:
        both = {"a": "1", "b": "2"}
        assert ledger.foresee(SCOPE, both, policy()).number == 1
        assert not list(tmp_path.iterdir())
        first = begin(ledger, both)
        assert begin(ledger, both) == first
        # Without the one that did not pass, it is the same attempt of two.
        assert begin(ledger, {"a": "1"}) == first
        assert begin(ledger, {"a": "1", "c": "3"}).number == 2
        assert begin(ledger, {"a": "another"}).number == 3
        assert ledger.foresee(SCOPE, {"d": "4"}, policy()).number == 4
        assert ledger.find(SCOPE, 1) == first
        assert ledger.find(SCOPE, 4) is None
        assert [attempt.number for attempt in ledger.all()] == [1, 2, 3]

    @pytest.mark.parametrize(
        "other",
        [
            SCOPE.model_copy(update={"policy": "q"}),
            SCOPE.model_copy(update={"baseline": {"checkpoint": "d"}}),
        ],
    )
    def test_another_baseline_or_policy_has_a_scope_of_its_own(
        self, ledger: AttemptLedger, other: AttemptScope
    ) -> None:
        begin(ledger, {"a": "1"})
        assert begin(ledger, {"a": "2"}, other).number == 1

    def test_the_ledger_is_readable_by_its_owner_alone(self, tmp_path: Path) -> None:
        before = os.umask(0o022)
        try:
            begin(AttemptLedger(Store(tmp_path / "store")), {"a": "1"})
        finally:
            os.umask(before)
        written = list((tmp_path / "store").rglob("*"))
        assert written
        assert not [path for path in written if path.stat().st_mode & 0o077]

    def test_runs_that_begin_at_once_have_numbers_of_their_own(self, ledger: AttemptLedger) -> None:
        def begin_again(which: int) -> int:
            while True:
                with suppress(AttemptChangedError):
                    return begin(ledger, {"a": str(which)}).number

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(begin_again, range(16))) == list(range(1, 17))

    def test_a_number_that_another_run_took_is_refused(self, ledger: AttemptLedger) -> None:
        planned = ledger.foresee(SCOPE, {"a": "1"}, policy(), "one")
        begin(ledger, {"a": "2"})
        with pytest.raises(AttemptChangedError):
            ledger.begin_attempt(planned)
        assert begin(ledger, {"a": "1"}).number == 2

    @pytest.mark.parametrize("damage", ["removed", "changed"])
    def test_a_ledger_with_a_hole_is_refused(
        self, ledger: AttemptLedger, tmp_path: Path, damage: str
    ) -> None:
        for name in "abc":
            begin(ledger, {name: "1"})
        file = tmp_path / "store" / "attempts" / SCOPE.key / "000002.json"
        if damage == "removed":
            file.unlink()
        else:
            file.write_text("{}")
        with pytest.raises(StoreError) as caught:
            begin(ledger, {"d": "1"})
        assert caught.value.where == str(file)

    def test_an_attempt_beside_a_verdict_names_its_bound(self) -> None:
        assert some_attempt().words == ""
        assert "at most 0.15 " in some_attempt(number=3).words
        assert "0.0042 of the 0.05" in some_attempt(number=3, spending="spend").words


class TestMeasurements:
    @staticmethod
    def count(ledger: AttemptLedger, number: int, log: str, run: str = "", **facts: bool) -> None:
        counted = Counted(attempt=some_attempt(), measurement="m", run=run)
        ledger.begin(counted, number, log, is_kept=facts.get("is_kept", True))

    @staticmethod
    def choose(ledger: AttemptLedger, lost: tuple[int, ...] = (), **facts: Any) -> int:
        is_over = facts.get("is_over", True)
        return ledger.next_number(
            ["m"],
            lost.__contains__,
            lambda _: is_over,
            facts.get("gate", "mine"),
            facts.get("remeasured", NOTHING),
        )

    def test_a_log_is_continued_until_it_is_lost(self, ledger: AttemptLedger) -> None:
        assert self.choose(ledger) == 1
        for _ in range(2):
            self.count(ledger, 1, "log")
            assert self.choose(ledger) == 1
        assert self.choose(ledger, lost=(1,)) == 2
        self.count(ledger, 2, "other")
        assert self.choose(ledger, lost=(1,)) == self.choose(ledger) == 2

    def test_another_log_cannot_take_a_number(self, ledger: AttemptLedger) -> None:
        self.count(ledger, 1, "log")
        for log, is_kept in (("log", False), ("other", True)):
            with pytest.raises(AttemptChangedError):
                self.count(ledger, 1, log, is_kept=is_kept)

    def test_what_is_over_is_measured_again_once_a_run(self, ledger: AttemptLedger) -> None:
        again = Remeasured(frozenset({"mine"}), frozenset({"run 2"}))
        self.count(ledger, 1, "log", "run 1")
        assert self.choose(ledger, remeasured=again, is_over=False) == 1
        assert self.choose(ledger, remeasured=again) == 2
        self.count(ledger, 2, "second", "run 2")
        assert self.choose(ledger, remeasured=again) == 2
        later = Remeasured(again.gates, frozenset({"run 3"}))
        assert self.choose(ledger, remeasured=later) == 3
        assert self.choose(ledger, remeasured=later, gate="neighbor") == 2

    def test_weights_that_were_measured_elsewhere_have_later_numbers_for_every_gate(
        self, ledger: AttemptLedger
    ) -> None:
        again = Remeasured(frozenset({"mine"}), frozenset({"run"}), least=2)
        assert self.choose(ledger, remeasured=again) == 2
        assert self.choose(ledger, remeasured=again, gate="neighbor") == 2


class TestWhatMakesAnAttempt:
    @pytest.mark.parametrize(
        "same",
        [
            {"questions": 500},
            {"batch": 8},
            {"concurrency": 1},
            {"time_budget_minutes": 3},
            {"noise_floor_questions": 5},
            {"sources": ["hub"]},
        ],
    )
    def test_more_of_the_same_is_none(self, same: dict[str, Any]) -> None:
        assert key() == key(policy=policy(**same))

    @pytest.mark.parametrize(
        "other",
        [
            {"margins": {"fp8": 0.02}},
            {"test": "fixed"},
            {"about": "benchmark"},
            {"num_fewshot": 1},
            {"expected_flips": 0.2},
        ],
    )
    def test_another_rule_is_one(self, other: dict[str, Any]) -> None:
        assert key() != key(policy=policy(**other))
        assert key() != key(served="t")
        assert key() != key(policy=policy().model_copy(update={"alpha": 0.1}))
        assert key() != key(policy=policy().model_copy(update={"attempts": "spend"}))

    def test_other_questions_are_one(self) -> None:
        assert key() != key(asked={"environment": "e", "mine": "others"})
        assert key() != key(asked={"environment": "f", "mine": "questions"})

    def test_only_the_margins_of_its_family_decide(self) -> None:
        wider = policy(margins={"fp8": 0.01, "int4": 0.02})
        assert key(policy=wider) == key()
        assert key(policy=wider) != key(policy=wider, family="int4")

    def test_what_a_fixed_test_expects_decides_nothing(self) -> None:
        few, many = (policy(test="fixed", expected_flips=flips) for flips in (0.1, 0.2))
        assert key(policy=few) == key(policy=many)

    def test_a_fixed_test_of_more_questions_is_one(self) -> None:
        few, many = (policy(test="fixed", questions=number) for number in (500, 600))
        assert key(policy=few) != key(policy=many)


def key(**changes: Any) -> str:
    """A variant's, under the usual policy."""
    asked = {"environment": "e", "mine": "questions"}
    usual = {"served": "s", "policy": policy(), "family": "fp8", "asked": asked}
    return variant_key(**{**usual, **changes})


class TestLevels:
    def test_a_rate_that_is_spent_is_never_overspent(self) -> None:
        shares = [attempt_share("spend", number) for number in range(1, 10_000)]
        assert shares[:4] == pytest.approx([1 / 2, 1 / 4, 1 / 12, 1 / 24])
        assert 0.999 < sum(shares) <= 1
        assert {attempt_share("per_run", number) for number in (1, 7)} == {1}

    def test_the_measurements_of_an_attempt_share_its_rate(self) -> None:
        levels = [gate_level(0.05, "per_run", 5, 2, measurement=n) for n in range(1, 10_000)]
        assert levels[0] == pytest.approx(0.9 * 0.025)
        assert 0.999 * 0.025 < sum(levels) <= 0.025

    def test_the_bound_over_all_attempts(self) -> None:
        assert bound_over_attempts(0.05, "per_run", 3) == pytest.approx(0.15)
        assert bound_over_attempts(0.05, "per_run", 30) == 1
        assert bound_over_attempts(0.05, "spend", 30) == 0.05


def judge(measurement: int = 1, **changes: Any) -> JudgeParameters:
    attempt = some_attempt(**{"number": 2, **changes})
    suites, level = policy().suites, {"mine": attempt.level(measurement)}
    gates = {
        name: gate_rule_of(suite, "fp8", level.get(name, attempt.level()))
        for name, suite in suites.items()
    }
    return JudgeParameters(policy=policy(), family="fp8", recipe="a", attempt=attempt, gates=gates)


def asked_at(alpha: float, measurement: int = 1, **changes: Any) -> dict[str, StageRecord]:
    rule = gate_rule_of(policy().suites["mine"], "fp8", alpha)
    asked = EvaluateParameters(
        suite={"kind": "mmlu"},
        environment="",
        max_length=9,
        batch=1,
        rule=rule.model_copy(update=changes),
        measurement=measurement,
    )
    record = StageRecord(
        stage="evaluate",
        variant="a",
        key="k",
        parameters=asked.model_dump(mode="json"),
        inputs={},
        input_digests={},
        result={},
        notes=[],
        seconds=0,
        finished="",
    )
    return {"candidate.mine": record}


class TestEvidence:
    def test_an_attempt_that_fits(self) -> None:
        assert list(find_rule_mismatches(judge(), "a", ["a"], asked_at(0.045))) == []
        second = asked_at(gate_level(0.05, "per_run", 2, 1, measurement=2), 2)
        assert list(find_rule_mismatches(judge(2), "a", ["a"], second)) == []

    def test_asked_by_another_bet(self) -> None:
        (found,) = find_rule_mismatches(judge(), "a", ["a"], asked_at(0.045, planned_bet=0.4))
        assert found == "candidate.mine: asked by another rule than it is judged by"
        other = judge().gates["mine"].model_copy(update={"planned_bet": 0.4})
        judged = judge().model_copy(update={"gates": {**judge().gates, "mine": other}})
        (found,) = find_rule_mismatches(judged, "a", ["a"], asked_at(0.045, planned_bet=0.4))
        assert "planned_bet: kept 0.4" in found

    @pytest.mark.parametrize(
        "judged",
        [
            {"judge": judge(), "records": asked_at(0.045, measurement=2)},
            {"judge": judge(spending="spend", alpha=0.05), "records": asked_at(0.045)},
            {"judge": judge(variants={"a": "1", "b": "2"}), "records": asked_at(0.045)},
            {"judge": judge(alpha=0.1), "records": asked_at(0.09)},
        ],
    )
    def test_a_level_that_is_not_the_attempts(self, judged: dict[str, Any]) -> None:
        tried = sorted(judged["judge"].attempt.variants)
        assert list(find_rule_mismatches(recipe="a", tried=tried, **judged))

    def test_other_variants(self) -> None:
        changed = judge(variants={"c": "1"})
        found = next(find_rule_mismatches(changed, "a", ["a"], asked_at(0.045)))
        assert found.startswith("its attempt is of c")

    @pytest.mark.parametrize(("used", "faults"), [(0.03, 0), (0.02, 1)])
    def test_another_spread_of_starts_than_the_attempt_began_with(
        self, used: float, faults: int
    ) -> None:
        begun = judge(start_spread={"stddev": 0.03, "starts": 10})
        profile = load_profile("cpu").model_copy(
            update={"restart_stddev": used, "restart_count": 10}
        )
        judged = begun.model_copy(update={"profile": profile})
        found = list(find_rule_mismatches(judged, "a", ["a"], {}))
        assert len(found) == faults


# --- replays of the error rate ------------------------------------------------------------------


def p_values(before: Any, after: Any, margin: float) -> Any:
    """Evidence on 'the drop is the margin or more' at any question; along the last axis."""
    log_pass, _ = log_evidence(after - before, Comparison.points(margin), None)
    return np.exp(-log_pass.max(axis=-1))


def bounded(rate: float, allowed: float) -> bool:
    return rate <= allowed + 2 * (allowed * (1 - allowed) / REPLAYS) ** 0.5


@pytest.mark.parametrize("shared", [True, False])
def test_a_gate_that_is_tried_until_it_passes_errs_no_more_often_if_the_rate_is_spent(
    shared: bool,
) -> None:
    """A true drop of exactly the margin; the same baseline's answers each time, or new ones."""
    tries, alpha = 8, 0.05
    generator = np.random.default_rng(4)
    before = (generator.random((REPLAYS, 1 if shared else tries, QUESTIONS)) < 0.7).astype(float)
    # 1 in 7 of the right answers is lost: a drop of 10 points.
    lost = generator.random((REPLAYS, tries, QUESTIONS)) < 1 / 7
    found = p_values(before, np.where(lost, 0.0, before), 0.1)
    levels = [gate_level(alpha, "spend", number, 1) for number in range(1, tries + 1)]
    assert bounded(float((found <= levels).any(axis=1).mean()), alpha)
    # Each with all of it: what `per_run` promises, and what its bound over all says.
    each = found <= gate_level(alpha, "per_run", 1, 1)
    assert bounded(float(each.mean()), alpha)
    together = float(each.any(axis=1).mean())
    assert alpha < together <= bound_over_attempts(alpha, "per_run", tries)


def test_an_attempt_that_is_counted_at_the_first_candidates_answer_errs_no_more_often() -> None:
    """Runs are aborted for what the baseline answered, and none of that counts.

    The user goes on only where half of the baseline's answers so far are low, which would help if
    they were thrown away. They are kept, so aborting changes nothing but who goes on.
    """
    alpha = 0.05
    generator = np.random.default_rng(5)
    before = (generator.random((REPLAYS * 4, QUESTIONS)) < 0.7).astype(float)
    after = np.where(generator.random(before.shape) < 1 / 7, 0.0, before)
    low = before[:, :100].mean(axis=1) < 0.7
    passed = p_values(before, after, 0.1) <= gate_level(alpha, "spend", 1, 1)
    assert float((passed & low).mean()) <= float(passed.mean()) <= alpha / 2


@pytest.mark.parametrize("commands", [2, 5, 10])
@pytest.mark.parametrize("sides", ["both", "the candidate"])
def test_what_is_measured_again_after_it_was_lost_keeps_the_rate_of_one_run(
    commands: int, sides: str
) -> None:
    """Folders are deleted and the same command is run, until it passes a bad variant.

    The questions are the same each time, and the answers are drawn again, as with a temperature.
    """
    alpha = 0.05
    generator = np.random.default_rng(commands)
    hard = generator.random((REPLAYS, 1, QUESTIONS))
    draws = commands if sides == "both" else 1
    before = (generator.random((REPLAYS, draws, QUESTIONS)) < 0.4 + 0.6 * hard).astype(float)
    chance = np.clip(0.3 + 0.6 * hard, 0, 1)  # a drop of 10 points in each question
    after = (generator.random((REPLAYS, commands, QUESTIONS)) < chance).astype(float)
    found = p_values(before, after, 0.1)
    levels = [gate_level(alpha, "per_run", 1, 1, measurement=n) for n in range(1, commands + 1)]
    assert bounded(float((found <= levels).any(axis=1).mean()), alpha)


@pytest.mark.parametrize("commands", [2, 5, 10])
def test_equal_servers_that_are_measured_again_keep_the_rate_of_one_run(commands: int) -> None:
    alpha, blocks = 0.05, 20
    faster = np.random.default_rng(commands).random((REPLAYS, commands, blocks)) < 0.5
    found = np.exp(-proportion_test.log_evidence(faster.reshape(-1, blocks), 0.5).max(axis=-1))
    found = found.reshape(REPLAYS, commands)
    levels = [gate_level(alpha, "per_run", 1, 1, measurement=n) for n in range(1, commands + 1)]
    assert bounded(float((found <= levels).any(axis=1).mean()), alpha)
    assert float((found <= alpha).any(axis=1).mean()) > alpha
