"""Power of a policy's gates with the available questions, before any work.

The numbers come from simulated runs (eval_gates/statistics/power.py, fixed_power.py). A gate that
could not even pass a variant with the baseline's answers is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from eval_gates.planned_bets import planned_bet_of
from eval_gates.statistics.assay_sensitivity import min_questions_for_sensitivity
from eval_gates.statistics.betting import LARGEST_BET, NUMBER_OF_BETS
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.fixed_power import fixed_power_plan, min_fixed_questions
from eval_gates.statistics.multiplicity import gate_level
from eval_gates.statistics.planned_bet import planned_bet
from eval_gates.statistics.power import (
    TARGET_POWER,
    SequentialGatePower,
    find_strictest,
    min_questions,
    power_plan,
)
from eval_gates.statistics.question_rounds import expected_questions
from eval_gates.stopping import comparison_of
from eval_gates.suites.suite_kind import SuiteKind, kind_of
from pipeline.core.errors import UsageError
from pipeline.core.events import Progress
from pipeline.plan.independence import check_known_tasks
from pipeline.stages.questions import QuestionsResult
from recipes.policy import AnySuite, Policy
from recipes.schema import Family, Recipe

Counts = Mapping[str, int | None]

# Below it a blocking suite is refused: nearly every good variant would stay undecided.
MIN_CHANCE = 0.2
_REPLAYS = 200  # a chance of 95 % is then known to 1.5 points (standard error)


@dataclass(frozen=True)
class GatePower:
    """Power of one suite's gate for one recipe family; chances assume no loss."""

    suite: str  # its name in the policy
    tier: str  # as in the policy
    test: str  # as in the policy
    about: str  # as in the policy
    family: Family  # of recipes
    margin: str  # in words
    # At which it is decided: that of the attempt and its number of variants.
    alpha: float
    questions: int | None  # at most; None where that is not known before they are read
    expected_questions: float  # mean number until it is decided
    chance_of_pass: float | None  # None where the number of questions is not known
    # Likewise, of a variant that truly lost half of the margin.
    chance_of_pass_at_half: float | None
    # Chance to fail a variant without loss, and one that lost half of the margin.
    chance_of_fail: float | None
    chance_of_fail_at_half: float | None
    # Drop of the mean score that fails with a chance of 80 %; None if none.
    smallest_visible_drop: float | None
    # Whether it could pass a variant that loses nothing; None where not known.
    decidable: bool | None
    words: str  # all this as a sentence

    @property
    def is_doubtful(self) -> bool:
        """Whether the gate may well not pass a variant without loss."""
        return self.chance_of_pass is not None and self.chance_of_pass < TARGET_POWER


@dataclass(frozen=True)
class JointPower:
    """Chance that a policy passes a variant of one family."""

    family: Family  # of recipes
    # That all critical suites pass and no supporting one fails if nothing is lost on any; None
    # where the number of questions of one is not known.
    chance_of_pass: float | None
    chance_of_pass_at_half: float | None  # likewise, if half of each margin is lost


def joint_power(gates: Sequence[GatePower]) -> tuple[JointPower, ...]:
    """Return the joint chances of each family, as if suites had independent questions."""
    families = dict.fromkeys(gate.family for gate in gates if gate.tier == "critical")
    found = []
    for family in families:
        own = [gate for gate in gates if gate.family == family]
        found.append(
            JointPower(
                family,
                _product(_lets_in(g.tier, g.chance_of_pass, g.chance_of_fail) for g in own),
                _product(
                    _lets_in(g.tier, g.chance_of_pass_at_half, g.chance_of_fail_at_half)
                    for g in own
                ),
            )
        )
    return tuple(found)


def _lets_in(tier: str, passes: float | None, fails: float | None) -> float | None:
    if tier == "critical":
        return passes
    if tier == "supporting":
        return None if fails is None else 1 - fails
    return 1.0


def _product(chances: Iterable[float | None]) -> float | None:
    product = 1.0
    for chance in chances:
        if chance is None:
            return None
        product *= chance
    return product


def policy_power(
    policy: Policy, recipes: Sequence[Recipe], counts: Counts, level: float | None = None
) -> tuple[GatePower, ...]:
    """Simulate every gate; takes 0.1 to 0.4 s each.

    Args:
        policy: every suite must have a margin for each recipe's family.
        counts: by suite, the number of available questions, if known.
        level: error rate of each gate; None for that of a first attempt.
    """
    return tuple(_power_of(gate) for gate in _gates(policy, recipes, counts, level))


def check_decidable(
    policy: Policy,
    recipes: Sequence[Recipe],
    counts: Counts,
    progress: Progress,
    level: float | None = None,
) -> None:
    """Refuse a suite that cannot decide its margin.

    Args:
        progress: receives a note on advisory suites that cannot decide.

    Raises:
        UsageError: a critical or supporting suite could not pass a variant without loss, is
            insensitive for every baseline score, or has several questions on one passage.
    """
    check_known_tasks(policy, progress)
    for gate in _gates(policy, recipes, counts, level):
        if not gate.can_see():
            refusal = gate.insensitivity()
        elif not gate.is_decidable():
            refusal = gate.refusal()
        else:
            continue
        if gate.suite.tier != "advisory":
            raise refusal
        progress.note(f"{refusal.message}; it is advisory, so this blocks nothing")


def check_likely(policy: Policy, recipes: Sequence[Recipe], counts: Counts) -> None:
    """Refuse a critical suite that leaves nearly all good variants undecided.

    Raises:
        UsageError: the chance to pass a variant without loss is below MIN_CHANCE.
    """
    for gate in _gates(policy, recipes, counts, None):
        chance = gate.rare_pass() if gate.suite.tier == "critical" else None
        if chance is not None:
            raise gate.rarity(chance)


def check_counted(
    policy: Policy,
    recipes: Sequence[Recipe],
    laid_out: Mapping[str, QuestionsResult],
    progress: Progress,
) -> None:
    """Check suites whose questions or clusters only laying out counts.

    Args:
        laid_out: by suite, the result of its stage `questions`.
        progress: receives notes on wrong estimates and on gates of low power.

    Raises:
        UsageError: as :func:`check_decidable` and :func:`check_likely`.
    """
    suites = {
        name: suite
        for name, suite in policy.suites.items()
        if (kind_of(suite).output_type(suite) is None or suite.cluster_by) and name in laid_out
    }
    if not suites:
        return
    for name, suite in suites.items():
        kind = kind_of(suite)
        estimate, found = kind.estimate(suite), laid_out[name].questions
        if estimate is not None and estimate != found:
            progress.note(
                f"{name}: {kind.title(suite)} has {found:,} questions, and {estimate:,} were "
                "estimated before they were read; its gate is checked again by what is there"
            )
    counted = policy.model_copy(update={"suites": suites})
    counts = {name: laid_out[name].units for name in suites}
    check_decidable(counted, recipes, counts, progress)
    check_likely(counted, recipes, counts)
    for gate in policy_power(counted, recipes, counts):
        if gate.is_doubtful:
            progress.note(f"{gate.suite}, {gate.family}: {gate.words}")


@dataclass(frozen=True)
class _PlannedGate:
    """One suite for one family, with what its power depends on."""

    name: str
    suite: AnySuite
    family: Family
    alpha: float
    available: int | None

    @property
    def comparison(self) -> Comparison:
        return comparison_of(self.suite.margins[self.family])

    @property
    def questions(self) -> int | None:
        known = (self.suite.questions, self.available)
        return min((number for number in known if number is not None), default=None)

    @property
    def population(self) -> int | None:
        if self.suite.about == "population":
            return None
        return self.available if self.available is not None else self.questions

    @property
    def kind(self) -> SuiteKind[Any]:
        return kind_of(self.suite)

    @property
    def flip_size(self) -> float:
        return self.kind.typical_change(self.suite)

    @property
    def baseline(self) -> float | None:
        """The assumed mean score, if the margin is relative to it."""
        if self.comparison.kind == "points":
            return None
        return self.kind.assumed_baseline

    def is_decidable(self) -> bool:
        """Return whether the gate could pass without any changed answer."""
        if self.questions is None or self.questions >= self._count_surely_enough():
            return True
        least = self._count_least(self.comparison)
        return least is not None and least <= self.questions

    @property
    def guessing(self) -> float:
        """The chance-level score of the suite's kind."""
        return self.kind.guessing

    @property
    def must_exceed(self) -> float:
        """The score that the baseline must exceed for a sensitive gate."""
        if self.comparison.kind == "points":
            return self.guessing + self.comparison.size
        return self.guessing / self.comparison.size

    def can_see(self) -> bool:
        """Return whether a baseline without errors would make the gate sensitive."""
        if self.must_exceed >= 1:
            return False
        if self.questions is None:
            return True
        room = math.log1p(LARGEST_BET * (1 / self.must_exceed - 1)) if self.must_exceed else 1.0
        if self.questions * room >= math.log(NUMBER_OF_BETS) - math.log(self.alpha):
            return True
        listed = None if self.guessing else self.population  # as eval_gates/chance_baselines.py
        least = min_questions_for_sensitivity(self.comparison, self.guessing, self.alpha, listed)
        return least is not None and least <= self.questions

    def rare_pass(self) -> float | None:
        """Return the chance to pass a variant without loss, if it is below MIN_CHANCE."""
        if self.questions is None or self.suite.about == "benchmark" or self._is_likely():
            return None
        plan = _plan_of(self)
        assert plan is not None
        return plan.chance_of_pass if plan.chance_of_pass < MIN_CHANCE else None

    def _is_likely(self) -> bool:
        """Return whether about half of such variants pass; needs no numpy."""
        assert self.questions is not None
        if self.suite.test == "sequential":
            return _expect_questions(self) <= self.questions
        deviation = self.flip_size * math.sqrt(self.suite.expected_flips / self.questions)
        reach = NormalDist().inv_cdf(1 - self.alpha) * deviation + 1 / self.questions
        return self.comparison.kind == "points" and reach <= self.comparison.size

    def rarity(self, chance: float) -> UsageError:
        return UsageError(
            f"the suite '{self.name}' would pass only {100 * chance:.0f} % of the variants that "
            f"lose nothing: {self.suite.margins[self.family].words}, {self.questions} questions, "
            f"{100 * self.suite.expected_flips:g} % of the answers expected to flip",
            where=f"policy key suites.{self.name}.margins.{self.family}",
            hint="a wider margin; or more questions; or 'tier: supporting'",
        )

    def insensitivity(self) -> UsageError:
        return UsageError(
            f"the suite '{self.name}' is insensitive at its margin of "
            f"{self.suite.margins[self.family].words}: it reaches down to what guessing scores "
            f"({100 * self.guessing:g} %), unless the baseline is shown to score more than "
            f"{100 * self.must_exceed:g} %, which "
            + ("cannot be" if self.must_exceed >= 1 else f"{self.questions} questions cannot show"),
            where=f"policy key suites.{self.name}.margins.{self.family}",
            hint="a stricter margin; or more questions; or 'tier: advisory'",
        )

    def refusal(self) -> UsageError:
        return UsageError(
            f"the suite '{self.name}' cannot decide its margin of "
            f"{self.suite.margins[self.family].words}: even when no answer changes it takes "
            f"{self._count_least(self.comparison)} questions, and there are {self.questions}",
            where=f"policy key suites.{self.name}.margins.{self.family}",
            hint="; or ".join(self._hints()),
        )

    def _count_least(self, comparison: Comparison) -> int | None:
        if self.suite.test == "fixed":
            return min_fixed_questions(comparison, self.alpha)
        return min_questions(
            comparison, self.alpha, self.population, planned=self._plan_bet(comparison)
        )

    def _plan_bet(self, comparison: Comparison) -> float:
        """Return the bet that gets half of the stake at that margin."""
        return planned_bet(
            comparison, self.suite.expected_flips, self.flip_size, self.kind.assumed_baseline
        )

    def _count_surely_enough(self) -> float:
        """Return an upper bound of the least number, from the largest bet alone."""
        if self.suite.test == "fixed":
            return math.inf
        allowed = self.comparison.allowed_drop(1.0)
        growth = math.log1p(LARGEST_BET * allowed / (1 - allowed))
        # Half of the stake lies evenly on the bets.
        return (math.log(2 * NUMBER_OF_BETS) - math.log(self.alpha)) / growth + 1

    def _hints(self) -> Iterator[str]:
        if self.suite.questions is not None and self.suite.questions == self.questions:
            yield f"ask more than {self.questions} questions (suites.{self.name}.questions)"
        else:
            yield "give more questions (--eval-data, or where the Hub can be reached)"
        strictest = self._find_strictest()
        if strictest is not None and strictest.kind == "points":
            yield f"a margin of at least {100 * strictest.size:g} points ({strictest.size:g})"
        elif strictest is not None:
            yield f"a recovery of at most {strictest.size:g}"
        if self.suite.test == "sequential" and self.suite.about == "population":
            yield "'about: benchmark', a claim about these very questions alone"
        yield "'tier: advisory'"

    def _find_strictest(self) -> Comparison | None:
        """Return the strictest margin that could pass, in steps of a tenth of a point."""
        assert self.questions is not None
        return find_strictest(self.comparison, self.questions, self._count_least)


def _gates(
    policy: Policy, recipes: Sequence[Recipe], counts: Counts, level: float | None
) -> Iterator[_PlannedGate]:
    families: dict[Family, None] = {
        recipe.family: None for recipe in recipes if recipe.family != "baseline"
    }
    alpha = gate_level(policy.alpha, policy.attempts, 1, len(recipes)) if level is None else level
    for name, suite in policy.suites.items():
        for family in families:
            yield _PlannedGate(name, suite, family, alpha, counts[name])


def _power_of(gate: _PlannedGate) -> GatePower:
    suite, plan = gate.suite, _plan_of(gate)
    decidable = gate.can_see() and gate.is_decidable() if plan else None
    return GatePower(
        suite=gate.name,
        tier=suite.tier,
        test=suite.test,
        about=suite.about,
        family=gate.family,
        margin=suite.margins[gate.family].words,
        alpha=gate.alpha,
        questions=gate.questions,
        expected_questions=plan.expected_questions if plan else _expect_questions(gate),
        chance_of_pass=plan.chance_of_pass if plan else None,
        chance_of_pass_at_half=plan.chance_of_pass_at_half if plan else None,
        chance_of_fail=plan.chance_of_fail if plan else None,
        chance_of_fail_at_half=plan.chance_of_fail_at_half if plan else None,
        smallest_visible_drop=plan.min_detectable_drop if plan else None,
        decidable=decidable,
        words=_words(gate, plan, decidable),
    )


def _plan_of(gate: _PlannedGate) -> SequentialGatePower | None:
    """Simulate the gate; None if the number of questions is unknown."""
    if gate.questions is None:
        return None
    if gate.suite.test == "fixed":
        return fixed_power_plan(
            gate.comparison,
            alpha=gate.alpha,
            questions=gate.questions,
            flips=gate.suite.expected_flips,
            flip_size=gate.flip_size,
            baseline=gate.baseline,
        )
    return power_plan(
        gate.comparison,
        alpha=gate.alpha,
        questions=gate.questions,
        flips=gate.suite.expected_flips,
        flip_size=gate.flip_size,
        population=gate.population,
        baseline=gate.baseline,
        batch=gate.suite.batch,
        replays=_REPLAYS,
    )


def _expect_questions(gate: _PlannedGate) -> float:
    return expected_questions(
        gate.comparison,
        gate.alpha,
        gate.suite.expected_flips,
        gate.flip_size,
        planned_bet_of(gate.suite, gate.family),
    )


def _words(gate: _PlannedGate, plan: SequentialGatePower | None, decidable: bool | None) -> str:
    if plan is None:
        return (
            f"{gate.comparison.words}: about {_expect_questions(gate):.0f} questions decide; "
            "how many there are is known once they are read"
        )
    if not gate.can_see():
        return gate.insensitivity().message
    if not decidable:
        return gate.refusal().message
    assumed = f" (taking a baseline of {100 * gate.baseline:g} %)" if gate.baseline else ""
    return plan.words + assumed + _describe_visibility(gate)


def _describe_visibility(gate: _PlannedGate) -> str:
    """Describe the score that the baseline must exceed; empty if that is 0."""
    least = f"{100 * gate.must_exceed:.3g} %"
    above = f"; insensitive unless the baseline is shown to score more than {least}"
    if gate.kind.scores_unrelated:
        return f"{above} and, by that margin, more than its answers to other questions"
    return above if gate.must_exceed else ""
