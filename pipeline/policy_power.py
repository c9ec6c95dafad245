"""What a policy's gates can show with the questions there are, told before any work is done.

The figures come from imagined runs of each gate (eval_gates/statistics/power.py, fixed_power.py).
A gate that could not pass even a variant that answers everything as the baseline does is refused,
since it would only cost time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval_gates.rounds import expected_questions
from eval_gates.statistics.betting import LARGEST_BET, NUMBER_OF_BETS
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.fixed_power import fixed_power_plan, least_fixed_questions
from eval_gates.statistics.power import (
    WANTED_CHANCE,
    PowerPlan,
    least_questions,
    power_plan,
    strictest_decidable,
)
from eval_gates.stopping import comparison_of
from pipeline.errors import UsageError
from pipeline.evaluation_plan import TYPICAL_CHANGE
from pipeline.events import Progress
from recipes.policy import AnySuite, Policy
from recipes.schema import Family, Recipe

Counts = Mapping[str, int | None]

# What a recovery margin is planned with, since no baseline has answered yet.
ASSUMED_BASELINE = {"rouge": 0.3}
ASSUMED_BASELINE_ELSE = 0.5
_REPLAYS = 200  # a chance of 95 % is then known to 1.5 points (standard error)


@dataclass(frozen=True)
class GatePower:
    """One suite's gate on variants of one family; chances are those when nothing is lost.

    Args:
        suite: its name in the policy.
        tier: as in the policy.
        test: as in the policy.
        about: as in the policy.
        family: of recipes.
        margin: in words.
        alpha: error rate at which it is decided: the policy's, over the number of variants.
        questions: at most; None where that is not known before they are read.
        expected_questions: mean number until it is decided.
        chance_of_decision: None where the number of questions is not known.
        chance_of_pass: likewise.
        smallest_visible_drop: of the mean score, that fails with a chance of 80 %; None if none.
        decidable: whether it could pass a variant that loses nothing; None where not known.
        words: all this as a sentence.
    """

    suite: str
    tier: str
    test: str
    about: str
    family: Family
    margin: str
    alpha: float
    questions: int | None
    expected_questions: float
    chance_of_decision: float | None
    chance_of_pass: float | None
    smallest_visible_drop: float | None
    decidable: bool | None
    words: str

    @property
    def is_doubtful(self) -> bool:
        """Whether a variant that loses nothing may well not pass."""
        return self.chance_of_pass is not None and self.chance_of_pass < WANTED_CHANCE

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


def policy_power(
    policy: Policy, recipes: Sequence[Recipe], counts: Counts
) -> tuple[GatePower, ...]:
    """What to expect of every gate; 0.1 to 0.4 s for each.

    Args:
        policy: suites and margins; every suite has one for every recipe's family.
        recipes: of all variants.
        counts: by suite, questions that its source has, where known.
    """
    return tuple(_power_of(gate) for gate in _gates(policy, recipes, counts))


def check_decidable(
    policy: Policy, recipes: Sequence[Recipe], counts: Counts, progress: Progress
) -> None:
    """Refuse a suite that cannot decide its margin; takes microseconds where all can.

    Args:
        policy: as for :func:`policy_power`.
        recipes: likewise.
        counts: likewise; a suite whose number of questions is not known is not refused.
        progress: hears of advisory suites that cannot decide.

    Raises:
        UsageError: a critical or supporting suite could not pass a variant that loses nothing.
    """
    for gate in _gates(policy, recipes, counts):
        if gate.is_decidable():
            continue
        refusal = gate.refusal()
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
        return comparison_of(self.suite.margins[self.family].model_dump())

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
        return TYPICAL_CHANGE if self.suite.kind == "rouge" else 1.0

    @property
    def baseline(self) -> float | None:
        """Its assumed mean score, where the margin is a share of it."""
        if self.comparison.kind == "points":
            return None
        return ASSUMED_BASELINE.get(self.suite.kind, ASSUMED_BASELINE_ELSE)

    def is_decidable(self) -> bool:
        """Whether it could pass where no answer changes, with the best of baselines."""
        if self.questions is None or self.questions >= self._surely_enough():
            return True
        least = self._least(self.comparison)
        return least is not None and least <= self.questions

    def refusal(self) -> UsageError:
        """The error that says so; of a gate that is not decidable only."""
        return UsageError(
            f"the suite '{self.name}' cannot decide its margin of "
            f"{self.suite.margins[self.family].words}: even when no answer changes it takes "
            f"{self._least(self.comparison)} questions, and there are {self.questions}",
            where=f"policy key suites.{self.name}.margins.{self.family}",
            cure="; or ".join(self._cures()),
        )

    def _least(self, comparison: Comparison) -> int | None:
        if self.suite.test == "fixed":
            graded = self.suite.kind == "rouge"
            return least_fixed_questions(comparison, self.alpha, graded=graded)
        return least_questions(comparison, self.alpha, self.population)

    def _surely_enough(self) -> float:
        """No less than the least number, without numpy: by the largest of the bets alone."""
        if self.suite.test == "fixed":
            return math.inf
        allowed = self.comparison.allowed_drop(1.0)
        growth = math.log1p(LARGEST_BET * allowed / (1 - allowed))
        return (math.log(NUMBER_OF_BETS) - math.log(self.alpha)) / growth + 1

    def _cures(self) -> Iterator[str]:
        if self.suite.questions is not None and self.suite.questions == self.questions:
            yield f"ask more than {self.questions} questions (suites.{self.name}.questions)"
        else:
            yield "give more questions (--eval-data, or where the Hub can be reached)"
        strictest = self._strictest()
        if strictest is not None and strictest.kind == "points":
            yield f"a margin of at least {100 * strictest.size:g} points ({strictest.size:g})"
        elif strictest is not None:
            yield f"a recovery of at most {strictest.size:g}"
        if self.suite.test == "sequential" and self.suite.about == "population":
            yield "'about: benchmark', a claim about these very questions alone"
        yield "'tier: advisory'"

    def _strictest(self) -> Comparison | None:
        """The strictest margin of its kind that could pass, in steps of a tenth of a point."""
        assert self.questions is not None
        if self.suite.test == "sequential":
            return strictest_decidable(self.comparison, self.alpha, self.questions, self.population)

        def candidate(tenths: int) -> Comparison:
            if self.comparison.kind == "points":
                return Comparison.points(tenths / 1000)
            return Comparison.recovery((1000 - tenths) / 1000)

        def passes(tenths: int) -> bool:
            least = self._least(candidate(tenths))
            return least is not None and least <= (self.questions or 0)

        found = bisect_left(range(1, 1000), True, key=passes) + 1
        return candidate(found) if found < 1000 else None


def _gates(policy: Policy, recipes: Sequence[Recipe], counts: Counts) -> Iterator[_Gate]:
    families: dict[Family, None] = {
        recipe.family: None for recipe in recipes if recipe.family != "baseline"
    }
    alpha = policy.alpha / len(recipes)  # Holm's first step, as EvaluationPlanner.level
    for name, suite in policy.suites.items():
        for family in families:
            yield _Gate(name, suite, family, alpha, counts[name])


def _power_of(gate: _Gate) -> GatePower:
    suite, plan = gate.suite, _plan_of(gate)
    decidable = gate.is_decidable() if plan else None
    return GatePower(
        suite=gate.name,
        tier=suite.tier,
        test=suite.test,
        about=suite.about,
        family=gate.family,
        margin=suite.margins[gate.family].words,
        alpha=gate.alpha,
        questions=gate.questions,
        expected_questions=plan.expected_questions if plan else _expected(gate),
        chance_of_decision=plan.chance_of_decision if plan else None,
        chance_of_pass=plan.chance_of_pass if plan else None,
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


def _expected(gate: _Gate) -> float:
    margin = gate.suite.margins[gate.family].model_dump()
    return expected_questions(margin, gate.alpha, gate.suite.expected_flips, gate.flip_size)


def _words(gate: _Gate, plan: PowerPlan | None, decidable: bool | None) -> str:
    if plan is None:
        return (
            f"{gate.comparison.words}: about {_expected(gate):.0f} questions decide; how many "
            "there are is known once they are read"
        )
    if not decidable:
        return gate.refusal().what
    assumed = f" (taking a baseline of {100 * gate.baseline:g} %)" if gate.baseline else ""
    return plan.words + assumed
