"""What a policy's gates can show with the available questions, before any work is done.

The figures come from imagined runs of each gate (eval_gates/statistics/power.py, fixed_power.py).
A gate that could not pass even a variant that answers everything as the baseline does is refused,
since it would only cost time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from eval_gates.planned_bets import assumed_baseline, planned_bet_of, typical_change
from eval_gates.statistics.betting import LARGEST_BET, NUMBER_OF_BETS
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.fixed_power import fixed_power_plan, least_fixed_questions
from eval_gates.statistics.multiplicity import level_of
from eval_gates.statistics.planned_bet import planned_bet
from eval_gates.statistics.power import (
    WANTED_CHANCE,
    PowerPlan,
    find_strictest,
    least_questions,
    power_plan,
)
from eval_gates.statistics.rounds import expected_questions
from eval_gates.statistics.sight import least_to_see
from eval_gates.stopping import comparison_of
from eval_gates.suites.mmlu import GUESSING
from pipeline.core.errors import UsageError
from pipeline.core.events import Progress
from pipeline.plan.independence import check_known_tasks
from recipes.policy import AnySuite, Policy
from recipes.schema import Family, Recipe

Counts = Mapping[str, int | None]

_REPLAYS = 200  # a chance of 95 % is then known to 1.5 points (standard error)


@dataclass(frozen=True)
class GatePower:
    """One suite's gate on variants of one family; chances are those when nothing is lost."""

    suite: str  # its name in the policy
    tier: str  # as in the policy
    test: str  # as in the policy
    about: str  # as in the policy
    family: Family  # of recipes
    margin: str  # in words
    # Error rate at which it is decided: the trial's share of the policy's, over the number of
    # variants.
    alpha: float
    questions: int | None  # at most; None where that is not known before they are read
    expected_questions: float  # mean number until it is decided
    chance_of_decision: float | None  # None where the number of questions is not known
    chance_of_pass: float | None  # likewise
    # Likewise, of a variant that truly lost half of the margin.
    chance_of_pass_at_half: float | None
    # Of the mean score, that fails with a chance of 80 %; None if none.
    smallest_visible_drop: float | None
    # Whether it could pass a variant that loses nothing; None where not known.
    decidable: bool | None
    words: str  # all this as a sentence

    @property
    def is_doubtful(self) -> bool:
        """Whether a variant that loses nothing may well not pass."""
        return self.chance_of_pass is not None and self.chance_of_pass < WANTED_CHANCE


@dataclass(frozen=True)
class JointPower:
    """What to expect of all critical suites of a policy together, for variants of one family."""

    family: Family  # of recipes
    # That all of them pass if nothing is lost on any; None where the number of questions of one is
    # not known.
    chance_of_pass: float | None
    chance_of_pass_at_half: float | None  # likewise, if half of each margin is lost


def joint_power(gates: Sequence[GatePower]) -> tuple[JointPower, ...]:
    """The chance that every critical suite passes, their questions being drawn independently."""
    critical = [gate for gate in gates if gate.tier == "critical"]
    return tuple(
        JointPower(
            family,
            _product(gate.chance_of_pass for gate in critical if gate.family == family),
            _product(gate.chance_of_pass_at_half for gate in critical if gate.family == family),
        )
        for family in dict.fromkeys(gate.family for gate in critical)
    )


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
    """What to expect of every gate; 0.1 to 0.4 s for each.

    Args:
        policy: suites and margins; every suite has one for every recipe's family.
        counts: by suite, questions that its source has, where known.
        level: at which gates are decided; that of a first trial when None.
    """
    return tuple(_power_of(gate) for gate in _gates(policy, recipes, counts, level))


def check_decidable(
    policy: Policy,
    recipes: Sequence[Recipe],
    counts: Counts,
    progress: Progress,
    level: float | None = None,
) -> None:
    """Refuse a suite that cannot decide its margin; takes microseconds where all can.

    Args:
        progress: receives a note on advisory suites that cannot decide.

    Raises:
        UsageError: a critical or supporting suite could not pass a variant that loses nothing, or
            is blind whatever the baseline scores; or its task has several questions a passage.
    """
    check_known_tasks(policy, progress)
    for gate in _gates(policy, recipes, counts, level):
        if not gate.can_see():
            refusal = gate.blindness()
        elif not gate.is_decidable():
            refusal = gate.refusal()
        else:
            continue
        if gate.suite.tier != "advisory":
            raise refusal
        progress.note(f"{refusal.what}; it is advisory, so this blocks nothing")


@dataclass(frozen=True)
class _Gate:
    """One suite for one family, with what its decidability depends on."""

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
    def flip_size(self) -> float:
        return typical_change(self.suite)

    @property
    def baseline(self) -> float | None:
        """Its assumed mean score, where the margin is a share of it."""
        if self.comparison.kind == "points":
            return None
        return assumed_baseline(self.suite)

    def is_decidable(self) -> bool:
        """Whether it could pass where no answer changes, with the best of baselines."""
        if self.questions is None or self.questions >= self._count_surely_enough():
            return True
        least = self._count_least(self.comparison)
        return least is not None and least <= self.questions

    @property
    def guessing(self) -> float:
        """Of a model that knows nothing, as far as the suite's kind says without reading it."""
        return GUESSING if self.suite.kind == "mmlu" else 0.0

    @property
    def must_exceed(self) -> float:
        """What the baseline has to be shown to score more than, or the gate is blind."""
        if self.comparison.kind == "points":
            return self.guessing + self.comparison.size
        return self.guessing / self.comparison.size

    def can_see(self) -> bool:
        """Whether a baseline without a single error could show that the gate is not blind."""
        if self.must_exceed >= 1:
            return False
        if self.questions is None:
            return True
        room = math.log1p(LARGEST_BET * (1 / self.must_exceed - 1)) if self.must_exceed else 1.0
        if self.questions * room >= math.log(NUMBER_OF_BETS) - math.log(self.alpha):
            return True
        listed = None if self.guessing else self.population  # as eval_gates/ignorance.py
        least = least_to_see(self.comparison, self.guessing, self.alpha, listed)
        return least is not None and least <= self.questions

    def blindness(self) -> UsageError:
        """The error that says so; of a gate that cannot see only."""
        return UsageError(
            f"the suite '{self.name}' is blind at its margin of "
            f"{self.suite.margins[self.family].words}: it reaches down to what guessing scores "
            f"({100 * self.guessing:g} %), unless the baseline is shown to score more than "
            f"{100 * self.must_exceed:g} %, which "
            + ("cannot be" if self.must_exceed >= 1 else f"{self.questions} questions cannot show"),
            where=f"policy key suites.{self.name}.margins.{self.family}",
            cure="a stricter margin; or more questions; or 'tier: advisory'",
        )

    def refusal(self) -> UsageError:
        """The error that says so; of a gate that is not decidable only."""
        return UsageError(
            f"the suite '{self.name}' cannot decide its margin of "
            f"{self.suite.margins[self.family].words}: even when no answer changes it takes "
            f"{self._count_least(self.comparison)} questions, and there are {self.questions}",
            where=f"policy key suites.{self.name}.margins.{self.family}",
            cure="; or ".join(self._cures()),
        )

    def _count_least(self, comparison: Comparison) -> int | None:
        if self.suite.test == "fixed":
            return least_fixed_questions(comparison, self.alpha)
        return least_questions(
            comparison, self.alpha, self.population, planned=self._plan_bet(comparison)
        )

    def _plan_bet(self, comparison: Comparison) -> float:
        """The bet that has half of the stake, were that the margin."""
        return planned_bet(
            comparison, self.suite.expected_flips, self.flip_size, assumed_baseline(self.suite)
        )

    def _count_surely_enough(self) -> float:
        """No less than the least number, without numpy: by the largest of the bets alone."""
        if self.suite.test == "fixed":
            return math.inf
        allowed = self.comparison.allowed_drop(1.0)
        growth = math.log1p(LARGEST_BET * allowed / (1 - allowed))
        # Half of the stake lies evenly on the bets.
        return (math.log(2 * NUMBER_OF_BETS) - math.log(self.alpha)) / growth + 1

    def _cures(self) -> Iterator[str]:
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
        """The strictest margin of its kind that could pass, in steps of a tenth of a point."""
        assert self.questions is not None
        return find_strictest(self.comparison, self.questions, self._count_least)


def _gates(
    policy: Policy, recipes: Sequence[Recipe], counts: Counts, level: float | None
) -> Iterator[_Gate]:
    families: dict[Family, None] = {
        recipe.family: None for recipe in recipes if recipe.family != "baseline"
    }
    alpha = level_of(policy.alpha, len(recipes), 1) if level is None else level
    for name, suite in policy.suites.items():
        for family in families:
            yield _Gate(name, suite, family, alpha, counts[name])


def _power_of(gate: _Gate) -> GatePower:
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
        chance_of_decision=plan.chance_of_decision if plan else None,
        chance_of_pass=plan.chance_of_pass if plan else None,
        chance_of_pass_at_half=plan.chance_of_pass_at_half if plan else None,
        smallest_visible_drop=plan.smallest_visible_drop if plan else None,
        decidable=decidable,
        words=_words(gate, plan, decidable),
    )


def _plan_of(gate: _Gate) -> PowerPlan | None:
    """From the real gate's imagined runs; None where the number of questions is not known."""
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


def _expect_questions(gate: _Gate) -> float:
    return expected_questions(
        gate.comparison,
        gate.alpha,
        gate.suite.expected_flips,
        gate.flip_size,
        planned_bet_of(gate.suite, gate.family),
    )


def _words(gate: _Gate, plan: PowerPlan | None, decidable: bool | None) -> str:
    if plan is None:
        return (
            f"{gate.comparison.words}: about {_expect_questions(gate):.0f} questions decide; "
            "how many there are is known once they are read"
        )
    if not gate.can_see():
        return gate.blindness().what
    if not decidable:
        return gate.refusal().what
    assumed = f" (taking a baseline of {100 * gate.baseline:g} %)" if gate.baseline else ""
    return plan.words + assumed + _sight_words(gate)


def _sight_words(gate: _Gate) -> str:
    """What the baseline must score for the gate not to be blind; a score of 0 goes without it."""
    least = f"{100 * gate.must_exceed:.3g} %"
    above = f"; blind unless the baseline is shown to score more than {least}"
    if gate.suite.kind == "rouge":
        return f"{above} and, by that margin, more than its summaries of other documents"
    return above if gate.must_exceed else ""
