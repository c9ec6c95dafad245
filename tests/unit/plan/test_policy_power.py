"""What a policy's gates can show; a suite that cannot decide its margin is refused in advance."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import asdict
from functools import cache
from typing import Any

import pytest
from listener import Listener

from eval_gates.statistics.multiplicity import gate_level
from eval_gates.suites.known_tasks import known_task
from eval_gates.suites.rouge import Rouge, RougeTask
from pipeline.core.errors import UsageError
from pipeline.plan.gate_power import (
    MIN_CHANCE,
    GatePower,
    check_counted,
    check_decidable,
    check_likely,
    joint_power,
    policy_power,
)
from pipeline.stages.questions import QuestionsResult
from recipes import catalog
from recipes.policy import Policy
from recipes.schema import Recipe

FULL = {
    **{"mmlu": 14_042, "mmlu_list": 14_042, "code": 542, "humaneval_greedy": 164},
    **{"rouge": 11_490, "bleu": 11_490},
}
CARRIED = {"quiz": 120, "humaneval": 16, "rouge": 32}
BOTH = [catalog.load_recipe("fp8-dynamic"), catalog.load_recipe("awq-w4a16")]
FP8 = BOTH[:1]


def policy(kind: str = "mmlu", **changes: Any) -> Policy:
    """One suite, called 'mine', next to one that any number of questions decides."""
    suite = {"kind": kind, "margins": {"fp8": 0.01, "int4": 0.02}, **changes}
    easy = {"kind": "mmlu", "margins": {"fp8": 0.7, "int4": 0.7}}
    return Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": {"mine": suite, "easy": easy},
        }
    )


def refused(one: Policy, questions: int | None, recipes: list[Recipe] = FP8) -> UsageError:
    with pytest.raises(UsageError) as caught:
        check_decidable(one, recipes, {"mine": questions, "easy": 100}, Listener())
    return caught.value


def allowed(one: Policy, questions: int | None, recipes: list[Recipe] = FP8) -> list[str]:
    """What is reported of a policy that is not refused."""
    listener = Listener()
    check_decidable(one, recipes, {"mine": questions, "easy": 100}, listener)
    return listener.notes


def power(one: Policy, questions: int | None, recipes: list[Recipe] = FP8) -> GatePower:
    return policy_power(one, recipes, {"mine": questions, "easy": 100})[0]


class TestRefusal:
    def test_it_says_what_where_and_three_hints(self) -> None:
        error = refused(policy(), 164)
        assert re.fullmatch(
            r"the suite 'mine' cannot decide its margin of 1 point: even when no answer changes "
            r"it takes \d+ questions, and there are 164",
            error.message,
        )
        assert error.where == "policy key suites.mine.margins.fp8"
        assert "more questions" in error.hint
        assert "a margin of at least" in error.hint
        assert "'about: benchmark'" in error.hint
        assert "'tier: advisory'" in error.hint

    @pytest.mark.parametrize("test", ["sequential", "fixed"])
    @pytest.mark.parametrize("kind", ["mmlu", "rouge"])
    @pytest.mark.parametrize("questions", [16, 32, 164, 1000])
    def test_the_margin_that_it_names_is_enough_and_no_smaller_one(
        self, kind: str, test: str, questions: int
    ) -> None:
        error = refused(policy(kind, test=test, margins={"fp8": 0.001}), questions)
        (found,) = re.findall(r"at least [\d.]+ points \(([\d.]+)\)", error.hint)
        enough = float(found)
        assert allowed(policy(kind, test=test, margins={"fp8": enough}), questions) == []
        refused(policy(kind, test=test, margins={"fp8": enough - 0.001}), questions)

    @pytest.mark.parametrize("test", ["sequential", "fixed"])
    def test_the_recovery_that_it_names_is_enough(self, test: str) -> None:
        error = refused(policy(test=test, margins={"fp8": {"recovery": 0.999}}), 164)
        (found,) = re.findall(r"a recovery of at most ([\d.]+)", error.hint)
        enough = {"fp8": {"recovery": float(found)}}
        assert allowed(policy(test=test, margins=enough), 164) == []

    def test_the_number_that_it_names_is_enough(self) -> None:
        for test in ("sequential", "fixed"):
            for kind in ("humaneval", "rouge"):
                error = refused(policy(kind, test=test), 10)
                (least,) = map(int, re.findall(r"it takes (\d+) questions", error.message))
                assert allowed(policy(kind, test=test), least) == []
                refused(policy(kind, test=test), least - 1)

    def test_mbpps_and_humanevals_tasks_together_show_three_points(self) -> None:
        drawn = {"samples": 16, "sampling": {"temperature": 0.2}}
        sampled = {**drawn, "test": "fixed", "expected_flips": 0.55}
        wanted = policy("mbpp", margins={"fp8": 0.03}, humaneval=True, **sampled)
        passes = [power(wanted, questions).chance_of_pass for questions in (164, 378, 542)]
        assert passes == sorted(passes, key=lambda chance: chance or 0.0)
        assert (passes[0] or 0.0) < 0.5 < 0.75 < (passes[1] or 0.0) < 0.9 < (passes[2] or 0.0)

    def test_the_cap_counts_not_the_source_alone(self) -> None:
        error = refused(policy(questions=100), 14_042)
        assert "ask more than 100 questions (suites.mine.questions)" in error.hint
        assert "--eval-data" in refused(policy(questions=1000), 100).hint
        assert allowed(policy(questions=1000), 14_042) == []

    def test_a_claim_about_the_benchmark_is_decided_by_its_end(self) -> None:
        assert allowed(policy(about="benchmark"), 164) == []
        refused(policy(about="benchmark", questions=50), 164)

    def test_an_advisory_suite_gets_a_note(self) -> None:
        (note,) = allowed(policy(tier="advisory"), 164)
        assert note.startswith("the suite 'mine' cannot decide its margin of 1 point")
        assert note.endswith("it is advisory, so this blocks nothing")
        refused(policy(tier="supporting"), 164)

    def test_a_number_that_is_not_known_is_not_refused(self) -> None:
        assert allowed(policy("lm_eval", task="arc_easy"), None) == []
        refused(policy("lm_eval", task="arc_easy", questions=20), None)

    def test_a_gate_that_passes_hardly_any_good_variant_is_refused(self) -> None:
        """GSM8K with 1 point passes 1 in 10 variants that lose nothing."""
        questions = known_task("gsm8k").questions
        counts = {"mine": questions, "easy": 100}
        gsm8k = {"kind": "lm_eval", "task": "gsm8k", "expected_flips": 0.06}
        chance = power(policy(**gsm8k), questions).chance_of_pass
        assert allowed(policy(**gsm8k), questions) == []  # it can be passed
        with pytest.raises(UsageError) as caught:
            check_likely(policy(**gsm8k), FP8, counts)
        assert chance is not None
        assert 0.02 < chance < MIN_CHANCE
        assert f"would pass only {100 * chance:.0f} % of the variants" in caught.value.message
        check_likely(policy(**gsm8k, tier="supporting"), FP8, counts)
        check_likely(policy(**gsm8k, margins={"fp8": 0.03, "int4": 0.03}), FP8, counts)

    def test_questions_are_counted_again_once_they_are_laid_out(self) -> None:
        tales = policy("lm_eval", task="tales", expected_flips=0.06)

        def counted(questions: int, clusters: int | None = None) -> list[str]:
            found = QuestionsResult(
                questions=questions, questions_digest="d", guessing=0.0, clusters=clusters
            )
            listener = Listener()
            check_counted(tales, FP8, {"mine": found}, listener)
            return listener.notes

        assert counted(14_000) == []
        (note,) = counted(2_000)
        assert note.startswith("mine, fp8: a margin of 1.00 points")
        for few in ((1_319, None), (14_000, 1_319), (100, None)):
            with pytest.raises(UsageError):
                counted(*few)

    def test_a_number_that_was_estimated_wrongly_is_noted_and_checked(self) -> None:
        wide = {"margins": {"fp8": 0.1}, "expected_flips": 0.06}
        gsm8k = policy("lm_eval", task="gsm8k", **wide)
        estimate = known_task("gsm8k").questions
        assert estimate is not None

        def notes(questions: int) -> list[str]:
            found = QuestionsResult(questions=questions, questions_digest="d", guessing=0.0)
            listener = Listener()
            check_counted(gsm8k, FP8, {"mine": found}, listener)
            return listener.notes

        assert notes(estimate) == []
        (note,) = notes(estimate - 19)
        assert "1,300" in note
        with pytest.raises(UsageError):
            notes(10)

    @pytest.mark.parametrize("margin", [0.75, 0.9, {"recovery": 0.25}, {"recovery": 0.1}])
    def test_a_margin_that_reaches_down_to_guessing_is_blind(self, margin: Any) -> None:
        error = refused(policy(margins={"fp8": margin, "int4": 0.1}), 14_042)
        assert "is insensitive at its margin" in error.message
        assert error.where == "policy key suites.mine.margins.fp8"

    def test_so_is_one_that_no_baseline_could_show_to_end_above_it(self) -> None:
        """With 70 points the baseline must be above 95 %, which takes 120 right answers."""
        few = refused(policy(margins={"fp8": 0.7, "int4": 0.7}), 60)
        assert "more than 95 %, which 60 questions cannot show" in few.message
        assert allowed(policy(margins={"fp8": 0.7, "int4": 0.7}), 200) == []

    def test_what_the_baseline_must_score_is_told(self) -> None:
        assert "shown to score more than 30 %" in power(policy(margins={"fp8": 0.05}), 2000).words
        words = power(policy("rouge", margins={"fp8": 0.05}, expected_flips=1.0), 2000).words
        assert "by that margin, more than its answers to other questions" in words

    @pytest.mark.parametrize(
        ("kind", "questions", "least"),
        [("gsm8k", 1319, 5), ("ifeval", 541, 5), ("mmlu_pro", 12_032, 15)],
    )
    def test_so_is_the_chance_level_of_generating_suites(
        self, kind: str, questions: int, least: int
    ) -> None:
        words = power(policy(kind, margins={"fp8": 0.05}), questions).words
        assert f"shown to score more than {least} %" in words
        assert "more than its answers to other questions" in words

    def test_each_variant_has_its_familys_margin(self) -> None:
        one = policy(margins={"fp8": 0.7, "int4": 0.001})
        assert allowed(one, 164) == []
        assert refused(one, 164, BOTH).where.endswith("margins.int4")

    def test_several_variants_need_more(self) -> None:
        error = refused(policy(), 100)
        (alone,) = map(int, re.findall(r"it takes (\d+)", error.message))
        (together,) = map(int, re.findall(r"it takes (\d+)", refused(policy(), 100, BOTH).message))
        assert together > alone

    def test_where_all_can_decide_nothing_heavy_is_imported(self) -> None:
        code = (
            "import sys\n"
            "from recipes import catalog\n"
            "from pipeline.core.events import NullProgress\n"
            "from pipeline.plan.gate_power import check_decidable\n"
            "recipes = [catalog.load_recipe(n) for n in ('fp8-dynamic', 'awq-w4a16')]\n"
            "counts = {'mmlu': 14042, 'code': 542, 'rouge': 11490}\n"
            "policy = catalog.load_policy('default')\n"
            "suites = {n: s for n, s in policy.suites.items() if s.about == 'population'}\n"
            "policy = policy.model_copy(update={'suites': suites})\n"
            "check_decidable(policy, recipes, counts, NullProgress())\n"
            "print({'numpy', 'scipy'} & set(sys.modules))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "set()\n"


class TestPower:
    def test_a_row_for_every_suite_and_family(self) -> None:
        found = policy_power(policy(), BOTH, {"mine": 300, "easy": 100})
        assert [(gate.suite, gate.family) for gate in found] == [
            *(("mine", "fp8"), ("mine", "int4")),
            *(("easy", "fp8"), ("easy", "int4")),
        ]
        assert {gate.alpha for gate in found} == {gate_level(0.05, "per_run", 1, 2)}
        json.dumps([asdict(gate) for gate in found])

    def test_two_recipes_of_a_family_are_one_row_at_half_the_alpha(self) -> None:
        twin = FP8[0].model_copy(update={"name": "twin"})
        found = policy_power(policy(), [*FP8, twin], {"mine": 2000, "easy": 100})
        assert [gate.family for gate in found] == ["fp8", "fp8"]
        assert {gate.alpha for gate in found} == {gate_level(0.05, "per_run", 1, 2)}

    def test_figures_of_the_literature(self) -> None:
        """14,042 questions, 1 point, alpha 5 %, 2 % flips: about 1,800 questions."""
        found = power(policy(expected_flips=0.02), 14_042)
        assert 1500 < found.expected_questions < 2300
        assert found.chance_of_pass == 1
        assert found.smallest_visible_drop is not None
        assert 0.01 < found.smallest_visible_drop < 0.02
        assert (found.decidable, found.is_doubtful) == (True, False)

    def test_more_flips_need_more_questions(self) -> None:
        few, many = (power(policy(expected_flips=flips), 14_042) for flips in (0.02, 0.1))
        assert many.expected_questions > 2 * few.expected_questions

    def test_a_gate_that_may_well_stay_open(self) -> None:
        found = power(policy("humaneval", margins={"fp8": 0.05}, expected_flips=0.06), 164)
        assert found.decidable
        assert found.is_doubtful
        assert "needs more questions or a wider margin" in found.words

    @pytest.mark.parametrize("test", ["sequential", "fixed"])
    def test_one_that_cannot(self, test: str) -> None:
        found = power(policy(test=test), 32)
        assert found.decidable is False
        assert found.is_doubtful
        assert found.words == refused(policy(test=test), 32).message

    def test_an_unknown_number(self) -> None:
        found = power(policy("lm_eval", task="arc_easy", expected_flips=0.02), None)
        assert 1500 < found.expected_questions < 2300
        assert (found.questions, found.decidable, found.is_doubtful) == (None, None, False)
        assert found.chance_of_pass is None
        assert "known once they are read" in found.words

    def test_a_fixed_gate_asks_all(self) -> None:
        found = power(policy("rouge", test="fixed", expected_flips=1.0), 1000)
        assert found.expected_questions == 1000
        # sd 0.1, so z * 0.1 / sqrt(1000) = 0.5 points, and 0.2 for losses that 1,000 did not show
        assert found.chance_of_pass == pytest.approx(0.77, abs=0.02)
        assert Rouge().typical_change(RougeTask()) == 0.1

    def test_a_recovery_says_which_baseline_it_takes(self) -> None:
        found = power(policy(margins={"fp8": {"recovery": 0.9}}), 2000)
        assert found.margin == "90 % recovery"
        assert "taking a baseline of 50 %" in found.words


class TestBesideNothingLost:
    def test_half_of_the_margin_is_harder(self) -> None:
        found = power(policy(margins={"fp8": 0.02}), 3000)
        assert found.chance_of_pass is not None
        assert found.chance_of_pass_at_half is not None
        assert found.chance_of_pass_at_half < found.chance_of_pass - 0.05
        assert "if half the margin is lost" in found.words

    def test_all_critical_suites_must_pass_at_once(self) -> None:
        one = policy(margins={"fp8": 0.02, "int4": 0.04})
        gates = policy_power(one, BOTH, {"mine": 3000, "easy": 100})
        fp8, int4 = joint_power(gates)
        assert (fp8.family, int4.family) == ("fp8", "int4")
        halves = [g.chance_of_pass_at_half for g in gates if g.family == "fp8"]
        assert None not in halves
        assert fp8.chance_of_pass_at_half == pytest.approx(math.prod(h or 0 for h in halves))
        assert asdict(fp8).keys() == {"family", "chance_of_pass", "chance_of_pass_at_half"}

    def test_a_supporting_suite_counts_by_its_wrong_refusals(self) -> None:
        """Greedy HumanEval at 3 points refuses about 1 in 10 of those that lose nothing."""
        greedy = {"tier": "supporting", "about": "benchmark", "expected_flips": 0.06}
        one = policy("humaneval", margins={"fp8": 0.03, "int4": 0.03}, **greedy)
        gates = policy_power(one, FP8, {"mine": 164, "easy": 100})
        (joint,) = joint_power(gates)
        mine, easy = gates
        assert 0.05 < (mine.chance_of_fail or 0) < 0.2
        assert joint.chance_of_pass == pytest.approx(
            (easy.chance_of_pass or 0) * (1 - (mine.chance_of_fail or 0))
        )
        advisory = policy("humaneval", margins={"fp8": 0.03}, **{**greedy, "tier": "advisory"})
        (without,) = joint_power(policy_power(advisory, FP8, {"mine": 164, "easy": 100}))
        assert without.chance_of_pass == easy.chance_of_pass

    def test_of_a_number_that_is_not_known_nothing_is_said(self) -> None:
        (found,) = joint_power(policy_power(policy(), FP8, {"mine": None, "easy": 100}))
        assert (found.chance_of_pass, found.chance_of_pass_at_half) == (None, None)


@cache
def carried_power(name: str) -> tuple[GatePower, ...]:
    """The power of a packaged policy, with the questions that it is for."""
    return policy_power(catalog.load_policy(name), BOTH, CARRIED if name == "demo" else FULL)


class TestCarriedPolicies:
    @pytest.mark.parametrize(
        ("name", "counts"), [("default", FULL), ("strict", FULL), ("demo", CARRIED)]
    )
    def test_they_decide_what_they_ask(self, name: str, counts: dict[str, int]) -> None:
        one, listener = catalog.load_policy(name), Listener()
        check_decidable(one, BOTH, counts, listener)
        assert listener.notes == []
        for gate in carried_power(name):
            assert gate.chance_of_pass is not None
            assert gate.chance_of_pass >= 0.8, gate.words

    def test_the_default_stops_long_before_the_end_of_mmlu(self) -> None:
        found = carried_power("default")
        assert [gate.expected_questions < 6000 for gate in found if gate.suite == "mmlu"] == [
            True,
            True,
        ]

    def test_the_strict_one_refuses_carried_questions(self) -> None:
        counts = {**FULL, "mmlu": 280, "mmlu_list": 280, "rouge": 32, "bleu": 32}
        with pytest.raises(UsageError) as caught:
            check_decidable(catalog.load_policy("strict"), BOTH, counts, Listener())
        assert caught.value.where == "policy key suites.mmlu.margins.fp8"
