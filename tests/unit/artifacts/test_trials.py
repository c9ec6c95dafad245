"""What was tried is counted over all runs, and trying again does not raise the error rate."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifacts.evidence.trial_check import find_miscounts
from artifacts.run_record import VariantReport, report_unjudged
from artifacts.selection import correct
from artifacts.stages.evaluate import EvaluateParameters, Rule
from artifacts.stages.judge import JudgeParameters
from artifacts.trials import Count, Trial, Trials, variant_key
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.multiplicity import level_of, share_of
from eval_gates.statistics.sequential import log_evidence
from pipeline.core.errors import StoreError
from pipeline.core.stage_record import StageRecord
from recipes.policy import Policy

COUNT = Count(baseline={"checkpoint": "c"}, policy="p")


def policy(**changes: Any) -> Policy:
    mine = {"kind": "mmlu", "margins": {"fp8": 0.01}, **changes}
    beside = {"kind": "mmlu", "margins": {"fp8": 0.5}, "tier": "advisory"}
    return Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": {"mine": mine, "beside": beside},
        }
    )


class TestCount:
    def test_what_is_new_is_a_trial_and_what_is_not_is_none(self, tmp_path: Path) -> None:
        trials = Trials(tmp_path)
        both = {"a": "1", "b": "2"}
        assert trials.foresee(COUNT, both).number == 1
        assert not list(tmp_path.iterdir())
        first = trials.begin(COUNT, both, "run 1")
        assert first.number == trials.begin(COUNT, both, "run 2").number == 1
        # Without the one that did not pass, it is the same trial of two.
        assert trials.begin(COUNT, {"a": "1"}, "run 3") == first
        second = trials.begin(COUNT, {"a": "1", "c": "3"}, "run 4")
        assert (second.number, second.earlier) == (2, (both,))
        assert trials.begin(COUNT, {"a": "another"}, "run 5").number == 3
        assert trials.foresee(COUNT, {"d": "4"}).number == 4
        assert trials.find(COUNT, 2) == second
        assert trials.find(COUNT, 4) is None
        assert [trial.number for trial in trials.latest()] == [3]

    @pytest.mark.parametrize(
        "other",
        [
            COUNT.model_copy(update={"policy": "q"}),
            COUNT.model_copy(update={"baseline": {"checkpoint": "d"}}),
        ],
    )
    def test_another_baseline_or_policy_has_a_count_of_its_own(
        self, tmp_path: Path, other: Count
    ) -> None:
        trials = Trials(tmp_path)
        trials.begin(COUNT, {"a": "1"}, "run")
        assert trials.begin(other, {"a": "2"}, "run").number == 1

    def test_what_is_kept_is_nobody_elses_to_read(self, tmp_path: Path) -> None:
        before = os.umask(0o022)
        try:
            Trials(tmp_path / "store").begin(COUNT, {"a": "1"}, "run")
        finally:
            os.umask(before)
        kept = list((tmp_path / "store").rglob("*"))
        assert kept
        assert not [path for path in kept if path.stat().st_mode & 0o077]

    def test_runs_that_begin_at_once_have_numbers_of_their_own(self, tmp_path: Path) -> None:
        def begin(which: int) -> int:
            return Trials(tmp_path).begin(COUNT, {"a": str(which)}, f"run {which}").number

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(begin, range(16))) == list(range(1, 17))

    def test_what_a_kill_left_is_no_trial(self, tmp_path: Path) -> None:
        trials = Trials(tmp_path)
        trials.begin(COUNT, {"a": "1"}, "run")
        (tmp_path / "trials" / COUNT.key / ".000002.json.77").write_text('{"half')
        assert trials.begin(COUNT, {"b": "2"}, "run").number == 2

    @pytest.mark.parametrize("damage", ["removed", "changed"])
    def test_a_count_with_a_hole_is_refused(self, tmp_path: Path, damage: str) -> None:
        trials = Trials(tmp_path)
        for name in "abc":
            trials.begin(COUNT, {name: "1"}, "run")
        file = tmp_path / "trials" / COUNT.key / "000002.json"
        if damage == "removed":
            file.unlink()
        else:
            file.write_text("{}")
        with pytest.raises(StoreError) as caught:
            trials.begin(COUNT, {"d": "1"}, "run")
        assert caught.value.where == str(file)


class TestWhatMakesATry:
    @pytest.mark.parametrize(
        "same",
        [
            {"questions": 500},
            {"batch": 8},
            {"concurrency": 1},
            {"minutes": 3},
            {"repeat": 5},
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
            {"shots": 1},
            {"expected_flips": 0.2},
        ],
    )
    def test_another_rule_is_one(self, other: dict[str, Any]) -> None:
        assert key() != key(policy=policy(**other))
        assert key() != key(served="t")
        assert key() != key(policy=policy().model_copy(update={"alpha": 0.1}))

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


class TestShares:
    def test_they_never_add_up_to_more_than_all(self) -> None:
        shares = [share_of(number) for number in range(1, 10_000)]
        assert 0.999 < sum(shares) <= 1
        assert shares == sorted(shares, reverse=True)
        assert share_of(None) == 1

    def test_each_variant_of_a_trial_has_its_part(self) -> None:
        assert level_of(0.05, 2, 1) == pytest.approx(0.0225)
        assert level_of(0.05, 1, 3) == pytest.approx(0.05 * 0.1 / 6)
        assert level_of(0.05, 4) == 0.0125

    def test_a_pass_alone_may_be_none_in_a_later_trial(self) -> None:
        report = report_unjudged("a", "fail", "", None).model_copy(
            update={"verdict": "pass", "p_value": 0.01, "trial": 2}
        )
        assert correct([report], 0.05 * share_of(1)) == []
        (changed,) = correct([report], 0.05 * share_of(2))
        assert isinstance(changed, VariantReport)
        assert changed.verdict == "undecided"
        assert "in trial 2" in changed.reason


def judge(**changes: Any) -> JudgeParameters:
    trial = {
        "count": COUNT,
        "number": 2,
        "variants": {"a": "1"},
        "earlier": [{"b": "2"}],
        "run": "",
    }
    return JudgeParameters(
        policy=policy(),
        family="fp8",
        recipe="a",
        tried=["a"],
        trial=Trial.model_validate({**trial, **changes}),
    )


def asked_at(alpha: float, **more: Any) -> dict[str, StageRecord]:
    margin = policy().suites["mine"].margins["fp8"]
    asked = EvaluateParameters(
        suite={"kind": "mmlu"},
        environment="",
        max_length=9,
        batch=1,
        rule=Rule(margin=margin, alpha=alpha, about="population", **more),
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
    def test_a_trial_that_fits(self) -> None:
        assert list(find_miscounts(judge(), "a", ["a"], asked_at(level_of(0.05, 1, 2)))) == []

    def test_asked_by_another_bet(self) -> None:
        record, level = judge(), level_of(0.05, 1, 2)
        planned = record.model_copy(update={"planned_bets": {"mine": 0.3}})
        assert list(find_miscounts(planned, "a", ["a"], asked_at(level, planned_bet=0.3))) == []
        for judged, asked in (
            (planned, {}),
            (planned, {"planned_bet": 0.4}),
            (record, {"planned_bet": 0.3}),
        ):
            (found,) = find_miscounts(judged, "a", ["a"], asked_at(level, **asked))
            assert found == "candidate.mine: asked by another bet than it is judged by"

    def test_asked_at_the_share_of_another_trial(self) -> None:
        (found,) = find_miscounts(judge(), "a", ["a"], asked_at(level_of(0.05, 1, 1)))
        assert "asked at the level" in found

    def test_fewer_trials_than_there_were(self) -> None:
        (found,) = find_miscounts(judge(number=1), "a", ["a"], asked_at(level_of(0.05, 1, 1)))
        assert found == "it claims to be trial 1, after 1 others"

    def test_other_variants(self) -> None:
        changed = judge(variants={"c": "1"})
        (found,) = find_miscounts(changed, "a", ["a"], asked_at(level_of(0.05, 1, 2)))
        assert found == "its trial is of c"


ALPHA, TRIES, REPLAYS = 0.05, 8, 400


@pytest.mark.parametrize("shared", [True, False])
def test_a_gate_that_is_tried_until_it_passes_errs_no_more_often(shared: bool) -> None:
    """A true drop of exactly the margin; the same baseline's answers each time, or new ones."""
    generator, comparison = np.random.default_rng(4), Comparison.points(0.1)
    shape = (REPLAYS, 1 if shared else TRIES, 300)
    before = (generator.random(shape) < 0.7).astype(float)
    # 1 in 7 of the right answers is lost: a drop of 10 points.
    lost = generator.random((REPLAYS, TRIES, 300)) < 1 / 7
    after = np.where(lost, 0.0, before)
    log_pass, _ = log_evidence(after - before, comparison, None)
    p_values = np.exp(-log_pass.max(axis=-1))
    shares = np.asarray([share_of(number) for number in range(1, TRIES + 1)])
    false_passes = float((p_values <= ALPHA * shares).any(axis=1).mean())
    assert false_passes <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / REPLAYS) ** 0.5
    # Each at the whole of alpha, as before, passes far more.
    assert float((p_values <= ALPHA).any(axis=1).mean()) > 0.1
