"""Chance that a gate passes, before any work: one formula for every gate of answers.

A variant changes a share `flips` of the scores by plus or minus `size`, and loses `loss` on
average. At each planned look the distance of Gaffke's bound from the mean is that of one typical
sample, and the mean is normal around its expectation. Looks share their first values, so their
joint chance is that of correlated normals. `benchmarks/policy_power.py` compares it with replays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

from eval_gates.statistics.assay_sensitivity import min_questions_for_sensitivity
from eval_gates.statistics.bound import min_identical_values
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import planned_looks
from eval_gates.statistics.multiplicity import gate_level
from eval_gates.stopping import comparison_of
from eval_gates.suites.suite_kind import SuiteKind, kind_of
from pipeline.core.errors import UsageError
from pipeline.core.events import Progress
from pipeline.plan.independence import check_known_tasks
from pipeline.stages.questions import QuestionsResult
from recipes.policy import AnySuite, Policy, UsualChange
from recipes.schema import Family, Recipe

Counts = Mapping[str, int | None]

MIN_CHANCE = 0.2
"""Below it a critical gate is refused: it would leave nearly every good variant undecided."""
DOUBTFUL = 0.8
"""Below it a run notes the gate."""
_FLIPS, _GRADED_FLIPS = 0.04, 0.6  # share of changed scores, where the policy states none
_MOST = 1 << 20


@dataclass(frozen=True)
class Chances:
    """Chances of the two verdicts; the rest is undecided."""

    passes: float
    fails: float


def chances(
    comparison: Comparison,
    alpha: float,
    values: int,
    *,
    flips: float,
    loss: float,
    size: float = 1.0,
    baseline: float = 0.5,
) -> Chances:
    """Return a gate's chances of a pass and a fail.

    Args:
        alpha: level of the gate, over all its looks.
        values: number of questions, or clusters.
        flips: share of scores that change.
        loss: true drop of the mean score, as a fraction.
        size: of a change of one score.
        baseline: mean score; a recovery depends on it.
    """
    outcomes = _outcomes(comparison, flips, loss, size, baseline)
    mean = sum(value * chance for value, chance in outcomes)
    variance = sum((value - mean) ** 2 * chance for value, chance in outcomes)
    room = mean - comparison.threshold
    looks = planned_looks(values)
    reach = [_distances(comparison, alpha * look.share, outcomes, mean, look.n) for look in looks]
    counts = [look.n for look in looks]
    return Chances(
        _chance_of_any([room - below for below, _ in reach], variance, counts),
        _chance_of_any([-room - above for _, above in reach], variance, counts),
    )


def _outcomes(
    comparison: Comparison, flips: float, loss: float, size: float, baseline: float
) -> list[tuple[float, float]]:
    """Return values of a question with their chances."""
    moves = max(flips, loss / size)
    lost, gained = (moves + loss / size) / 2, (moves - loss / size) / 2
    if comparison.kind == "points":
        return [(-size, lost), (0.0, 1 - lost - gained), (size, gained)]
    share = comparison.size
    if size == 1:
        lost = min(lost, baseline)
        gained = min(gained, 1 - baseline)
        kept = baseline - lost
        return [(-share, lost), (1 - share, kept), (0.0, 1 - lost - gained - kept), (1.0, gained)]
    rest = (1 - share) * baseline
    return [(rest - size, lost), (rest, 1 - lost - gained), (rest + size, gained)]


def _distances(
    comparison: Comparison,
    level: float,
    outcomes: Sequence[tuple[float, float]],
    mean: float,
    n: int,
) -> tuple[float, float]:
    """Return the distances of both bounds from the mean of a typical sample of n values."""
    from eval_gates.statistics.bound import counted_bounds

    bounds = counted_bounds(
        [value for value, _ in outcomes],
        [n * chance for _, chance in outcomes],
        level,
        lowest=comparison.lowest,
        highest=comparison.highest,
    )
    return mean - bounds.lower, bounds.upper - mean


def _chance_of_any(room: Sequence[float], variance: float, counts: Sequence[int]) -> float:
    """Return the chance that the mean of the first n values is above its limit at any look.

    Args:
        room: expected distance of the mean from the limit, at each look.
        variance: of one value.
        counts: n, at each look.
    """
    if variance == 0:
        return float(max(room) > 0)
    limits = [-each / math.sqrt(variance / n) for each, n in zip(room, counts, strict=True)]
    if len(limits) == 1:
        return 1 - NormalDist().cdf(limits[0])
    import numpy as np
    from scipy.stats import multivariate_normal

    n = np.array(counts, dtype=float)
    correlations = np.sqrt(np.minimum.outer(n, n) / np.maximum.outer(n, n))
    none = multivariate_normal.cdf(limits, np.zeros(n.size), correlations, rng=0)
    return float(min(1.0, max(0.0, 1 - none)))


@dataclass(frozen=True)
class GatePower:
    """Chances of one suite's gate for one recipe family."""

    suite: str  # its name in the policy
    tier: str
    family: Family
    margin: str  # in words
    alpha: float  # level of the gate
    questions: int | None  # or clusters; None where that is not known before they are read
    # Chances for a variant that loses nothing; None where the number is not known.
    passes: float | None
    fails: float | None
    # Chances for the policy's usual variant; None without one.
    usual_passes: float | None
    usual_fails: float | None
    words: str  # all this as a sentence

    @property
    def is_doubtful(self) -> bool:
        """Whether the gate may well not pass a variant without loss."""
        return self.tier == "critical" and self.passes is not None and self.passes < DOUBTFUL

    def lets_in(self, *, usual: bool) -> float | None:
        """Return the chance that the gate does not keep such a variant out."""
        passes = self.usual_passes if usual else self.passes
        fails = self.usual_fails if usual else self.fails
        if self.tier == "critical":
            return passes
        if self.tier == "supporting":
            return 1 - fails if fails is not None else None
        return 1.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class JointPower:
    """Chance that all suites of a policy let a variant of one family in."""

    family: Family
    passes: float | None  # if nothing is lost; None where a number of questions is not known
    usual_passes: float | None  # of the policy's usual variant


def joint_power(gates: Sequence[GatePower]) -> tuple[JointPower, ...]:
    """Return the joint chances of each family, as if suites had independent questions."""
    families = dict.fromkeys(gate.family for gate in gates if gate.tier == "critical")
    return tuple(
        JointPower(
            family,
            *(
                _product(gate.lets_in(usual=usual) for gate in gates if gate.family == family)
                for usual in (False, True)
            ),
        )
        for family in families
    )


def _product(found: Iterable[float | None]) -> float | None:
    known = list(found)
    return None if None in known else math.prod(each for each in known if each is not None)


def policy_power(
    policy: Policy, recipes: Sequence[Recipe], counts: Counts, level: float | None = None
) -> tuple[GatePower, ...]:
    """Compute the chances of every gate; milliseconds each.

    Args:
        policy: every suite must have a margin for each recipe's family.
        counts: by suite, the number of available questions, if known.
        level: error rate of each gate; None for that of a first attempt.
    """
    return tuple(gate.power() for gate in _gates(policy, recipes, counts, level))


def check_power(
    policy: Policy,
    recipes: Sequence[Recipe],
    counts: Counts,
    progress: Progress,
    level: float | None = None,
) -> None:
    """Refuse a policy under which good variants could not pass.

    Args:
        progress: receives a note on advisory suites that cannot decide.

    Raises:
        UsageError: a critical or supporting suite could not pass a variant without loss, is
            insensitive for every baseline score, or has several questions on one passage; or a
            critical one passes fewer than MIN_CHANCE of variants without loss.
    """
    check_known_tasks(policy, progress)
    for gate in _gates(policy, recipes, counts, level):
        refusal = gate.refusal()
        if refusal is None:
            continue
        if gate.suite.tier != "advisory":
            raise refusal
        progress.note(f"{refusal.message}; it is advisory, so this blocks nothing")


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
        UsageError: as :func:`check_power`.
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
    check_power(counted, recipes, counts, progress)
    for gate in policy_power(counted, recipes, counts):
        if gate.is_doubtful:
            progress.note(gate.words)


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
    def kind(self) -> SuiteKind[Any]:
        return kind_of(self.suite)

    @property
    def size(self) -> float:
        return self.kind.typical_change(self.suite)

    @property
    def usual(self) -> UsualChange | None:
        return self.suite.usual.get(self.family)

    @property
    def flips(self) -> float:
        """Share of scores that change even if nothing is lost."""
        if self.usual is not None:
            return self.usual.flips
        return _FLIPS if self.size == 1 else _GRADED_FLIPS

    @property
    def must_exceed(self) -> float:
        """The score that the baseline must exceed for a sensitive gate."""
        if self.comparison.kind == "points":
            return self.kind.guessing + self.comparison.size
        return self.kind.guessing / self.comparison.size

    def power(self) -> GatePower:
        nothing = usual = None
        if self.questions is not None:
            nothing = self.chances(0.0)
            usual = self.chances(self.usual.loss) if self.usual is not None else None
        refusal = self.refusal()
        return GatePower(
            suite=self.name,
            tier=self.suite.tier,
            family=self.family,
            margin=self.suite.margins[self.family].words,
            alpha=self.alpha,
            questions=self.questions,
            passes=nothing.passes if nothing else None,
            fails=nothing.fails if nothing else None,
            usual_passes=usual.passes if usual else None,
            usual_fails=usual.fails if usual else None,
            words=refusal.message if refusal else self._words(nothing, usual),
        )

    def chances(self, loss: float) -> Chances:
        assert self.questions is not None
        return chances(
            self.comparison,
            self.alpha,
            self.questions,
            flips=self.flips,
            loss=loss,
            size=self.size,
            baseline=self.kind.assumed_baseline,
        )

    def refusal(self) -> UsageError | None:
        """Return why the gate cannot be used; None if it can."""
        if self.must_exceed >= 1:
            return self._insensitivity("which cannot be")
        if self.questions is None:
            return None
        least = min_questions_for_sensitivity(self.comparison, self.kind.guessing, self.alpha)
        if least is None or least > self.questions:
            return self._insensitivity(f"which {self.questions} questions cannot show")
        least = self._min_questions(self.comparison)
        if least > self.questions:
            return self._error(
                f"the suite '{self.name}' cannot decide its margin of "
                f"{self.suite.margins[self.family].words}: even when no answer changes it takes "
                f"{least} questions, and there are {self.questions}",
                "; or ".join(self._hints()),
            )
        if self.suite.tier != "critical" or self._is_likely():
            return None
        passes = self.chances(0.0).passes
        if passes >= MIN_CHANCE:
            return None
        return self._error(
            f"the suite '{self.name}' would pass only {100 * passes:.0f} % of the variants that "
            f"lose nothing: {self.suite.margins[self.family].words}, {self.questions} questions, "
            f"{100 * self.flips:g} % of the answers expected to flip",
            "a wider margin; or more questions; or 'tier: supporting'",
        )

    def _is_likely(self) -> bool:
        """Return whether about half of such variants pass; needs no numpy."""
        assert self.questions is not None
        last = planned_looks(self.questions)[-1]
        deviation = self.size * math.sqrt(self.flips / last.n)
        reach = NormalDist().inv_cdf(1 - self.alpha * last.share) * deviation + 1 / last.n
        return self.comparison.kind == "points" and reach <= self.comparison.size

    def _min_questions(self, comparison: Comparison) -> int:
        """Return how many questions could pass the gate if no answer changes."""
        margin = comparison.allowed_drop(1.0)
        least = min_identical_values(margin, self.alpha)
        # With several looks, the last has its share of alpha.
        if planned_looks(least)[-1].share == 1:
            return least
        return min_identical_values(margin, self.alpha * planned_looks(least)[-1].share)

    def _insensitivity(self, why: str) -> UsageError:
        return self._error(
            f"the suite '{self.name}' is insensitive at its margin of "
            f"{self.suite.margins[self.family].words}: it reaches down to what guessing scores "
            f"({100 * self.kind.guessing:g} %), unless the baseline is shown to score more than "
            f"{100 * self.must_exceed:g} %, {why}",
            "a stricter margin; or more questions; or 'tier: advisory'",
        )

    def _error(self, message: str, hint: str) -> UsageError:
        where = f"policy key suites.{self.name}.margins.{self.family}"
        return UsageError(message, where=where, hint=hint)

    def _hints(self) -> Iterator[str]:
        if self.suite.questions is not None and self.suite.questions == self.questions:
            yield f"ask more than {self.questions} questions (suites.{self.name}.questions)"
        else:
            yield "give more questions (--eval-data, or where the Hub can be reached)"
        if self.comparison.kind == "points":
            tenths = range(round(1000 * self.comparison.size) + 1, 1000)
            enough = (
                each / 1000
                for each in tenths
                if self._min_questions(Comparison.points(each / 1000)) <= (self.questions or 0)
            )
            if (margin := next(enough, None)) is not None:
                yield f"a margin of at least {100 * margin:g} points ({margin:g})"
        yield "'tier: advisory'"

    def _words(self, nothing: Chances | None, usual: Chances | None) -> str:
        start = f"{self.name}, {self.family}, {self.suite.tier}: {self.comparison.words}"
        if nothing is None:
            return f"{start}; how many questions there are is known once they are read"
        assert self.questions is not None
        looks = " or ".join(f"{look.n:,}" for look in planned_looks(self.questions))
        parts = [f"{start}, decided after {looks} questions", self._outcome(nothing, "nothing")]
        if usual is not None and self.usual is not None:
            lost = f"{100 * self.usual.loss:g} points"
            parts.append(self._outcome(usual, f"{lost} (usual, {100 * self.flips:g} % flips)"))
        if self.must_exceed:
            parts.append(
                f"insensitive unless the baseline is shown to score more than "
                f"{100 * self.must_exceed:.3g} %"
            )
        return "; ".join(parts)

    def _outcome(self, found: Chances, lost: str) -> str:
        if self.suite.tier == "critical":
            return f"passes {format_chance(found.passes)} of variants that lose {lost}"
        return f"fails {format_chance(found.fails)} of variants that lose {lost}"


def format_chance(chance: float | None) -> str:
    """Format a chance; only 1 is shown as 100 %, and only 0 as 0 %."""
    if chance is None:
        return "-"
    if 0 < chance < 0.005:
        return "< 1 %"
    return f"{100 * chance:.0f} %" if chance < 0.995 or chance == 1 else "> 99 %"


def _gates(
    policy: Policy, recipes: Sequence[Recipe], counts: Counts, level: float | None
) -> Iterator[_PlannedGate]:
    families: dict[Family, None] = {
        recipe.family: None for recipe in recipes if recipe.family != "baseline"
    }
    alpha = gate_level(policy.alpha, policy.attempts, len(recipes)) if level is None else level
    for name, suite in policy.suites.items():
        for family in families:
            yield _PlannedGate(name, suite, family, alpha, counts[name])
