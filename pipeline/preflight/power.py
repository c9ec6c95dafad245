"""Chance that a gate passes, before any work.

A variant changes a share `flips` of the scores by plus or minus `size`, and loses `loss` on
average. At each look the distance of Gaffke's bound from the mean is a typical sample's. Looks
share values, so they are correlated normals. `benchmarks/policy_power.py` compares with replays.
Speed gates are in `speed_power.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

from eval_gates.cost import MIN_PROBLEMS
from eval_gates.decision_gate import gate_name
from eval_gates.statistics.assay_sensitivity import min_questions_for_sensitivity
from eval_gates.statistics.bound import min_identical_values
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import Look, min_unchanged_values, planned_looks
from eval_gates.stopping import comparison_of
from eval_gates.suites.decision_task import KindGate, gates_of
from eval_gates.suites.suite_kind import SuiteKind, kind_of
from pipeline.plan.data_sources import check_independence
from pipeline.stages.questions import QuestionsResult
from prepare.errors import UsageError
from prepare.events import Progress
from recipes.policy import AnySuite, Policy
from recipes.schema import Family, Recipe

Counts = Mapping[str, int | None]

MIN_CHANCE = 0.2
"""Below it a critical gate is refused: nearly every good variant would stay undecided."""
_FLIPS = 0.04
_GRADED_FLIPS = 0.6  # share of changed scores, where the policy states none
_MAX_COUNTED_FLIPS = 30.0
_DRAWS = 4_000  # so that a chance is known to 0.8 points
RATIO = (1.0, 1.05)
"""True ratios of speed: if nothing changes, and of a usual good variant."""


@dataclass(frozen=True)
class Chances:
    """Chances of both verdicts; the rest is undecided."""

    passes: float
    fails: float


@dataclass(frozen=True)
class GatePower:
    """Chances that a gate lets a variant in."""

    gate: str  # of a suite, or of a speed gate
    tier: str
    family: Family | None  # None: the same for all families
    alpha: float
    units: int | None  # questions, clusters or blocks; None if known only once they are read
    passes: float | None  # of a variant that loses nothing; None where `units` is
    usual: float | None  # of the policy's usual good variant; None without one
    words: str  # all this as a sentence


def chances(
    comparison: Comparison,
    alpha: float,
    values: int,
    *,
    flips: float,
    loss: float,
    size: float = 1.0,
    baseline: float = 0.5,
    looks: Sequence[Look] = (),
) -> Chances:
    """Return the chances of a gate of answers.

    `alpha` is over all looks, the usual ones if none are given. `values` counts questions, or
    clusters. `loss` is the true drop of the mean, and `size` a score's change. A recovery depends
    on `baseline`, the mean score.
    """
    from eval_gates.statistics.bound import counted_bounds

    outcomes = _outcomes(comparison, flips, loss, size, baseline)
    looks = looks or planned_looks(values, comparison.margin)
    is_counted = comparison.kind == "points" and size == 1
    if is_counted and values * max(flips, loss) <= _MAX_COUNTED_FLIPS:
        return _draw_chances(comparison, alpha, looks, outcomes[0][1], outcomes[2][1])
    mean = sum(value * chance for value, chance in outcomes)
    variance = sum((value - mean) ** 2 * chance for value, chance in outcomes)
    above = list[float]()
    below = list[float]()
    for look in looks:
        bounds = counted_bounds(
            [value for value, _ in outcomes],
            [look.n * chance for _, chance in outcomes],
            alpha * look.share,
            lowest=comparison.lowest,
            highest=comparison.highest,
        )
        above.append(bounds.lower - comparison.threshold)
        below.append(comparison.threshold - bounds.upper)
    counts = [look.n for look in looks]
    return Chances(_any_above(above, variance, counts), _any_above(below, variance, counts))


def _draw_chances(
    comparison: Comparison, alpha: float, looks: Sequence[Look], lost: float, gained: float
) -> Chances:
    """Return the chances by drawing counts: few flips are not normal.

    `lost` and `gained` are chances of a question.
    """
    import numpy as np

    chance = np.random.default_rng(0)
    counts = np.zeros((_DRAWS, 2), dtype=int)
    is_open = np.ones(_DRAWS, dtype=bool)
    ended = {"pass": 0, "fail": 0}
    before = 0
    for look in looks:
        new = look.n - before
        counts += chance.multinomial(new, [lost, gained, 1 - lost - gained], _DRAWS)[:, :2]
        before = look.n
        found = [
            _decide_counts(comparison, alpha * look.share, look.n, int(down), int(up))
            for down, up in np.unique(counts[is_open], axis=0)
        ]
        _, which = np.unique(counts[is_open], axis=0, return_inverse=True)
        states = np.array(found)[which.ravel()]
        for state in ended:
            ended[state] += int((states == state).sum())
        is_open[np.flatnonzero(is_open)[states != "open"]] = False
    least = 0.5 / _DRAWS  # what no draw showed is rare, and not impossible
    passes, fails = (
        min(1 - least, max(least, count / _DRAWS)) if lost + gained else count / _DRAWS
        for count in ended.values()
    )
    return Chances(passes, fails)


@lru_cache(maxsize=10_000)
def _decide_counts(comparison: Comparison, level: float, n: int, lost: int, gained: int) -> str:
    """Return what a look at these counts decides."""
    import numpy as np

    from eval_gates.statistics.gaffke import log_chance_below

    counts = np.array([lost + 1, n - lost - gained, gained], dtype=float)
    points = np.array([-1.0, 0.0, 1.0])
    inside = log_chance_below(points, counts, comparison.threshold)
    if inside < math.log(level):
        return "pass"
    counts = np.array([lost, n - lost - gained, gained + 1], dtype=float)
    outside = log_chance_below(-points, counts, -comparison.threshold)
    return "fail" if outside < math.log(level) else "open"


def _outcomes(
    comparison: Comparison, flips: float, loss: float, size: float, baseline: float
) -> list[tuple[float, float]]:
    """Return values of a question with their chances."""
    moves = max(flips, loss / size)
    lost = (moves + loss / size) / 2
    gained = (moves - loss / size) / 2
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


def _any_above(room: Sequence[float], variance: float, counts: Sequence[int]) -> float:
    """Return the chance that a running mean is above its limit at any look.

    `room` is the expected distance from the limit, `counts` n, by look.
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


def joint_power(gates: Sequence[GatePower]) -> dict[Family, tuple[float | None, float | None]]:
    """Return each family's chances to pass all suites, without loss and usual.

    Suites count as independent. None: a number is unknown.
    """
    found: dict[Family, tuple[float | None, float | None]] = {}
    for family in dict.fromkeys(g.family for g in gates if g.family and g.tier == "critical"):
        of = [gate for gate in gates if gate.family == family and gate.tier != "advisory"]
        nothing = [gate.passes for gate in of]
        usual = [gate.usual for gate in of]
        found[family] = _product(nothing), _product(usual)
    return found


def promotion_power(gates: Sequence[GatePower]) -> dict[Family, list[float | None]]:
    """Return each family's chance of a promotion, at each true ratio of :data:`RATIO`.

    All suites and speed gates together, for the policy's usual variant, or one that loses nothing.
    Limits are of a usual variant. None: a number is unknown.
    """
    found: dict[Family, list[float | None]] = {}
    speed = [gate for gate in gates if gate.family is None and gate.tier != "advisory"]
    for family, (nothing, usual) in joint_power(gates).items():
        suites = nothing if usual is None else usual
        found[family] = [
            _product([suites, *(_at_ratio(gate, place) for gate in speed)])
            for place in range(len(RATIO))
        ]
    return found


def _at_ratio(gate: GatePower, place: int) -> float | None:
    is_ratio = gate.gate.startswith("ratio.")
    return (gate.passes, gate.usual)[place] if is_ratio else gate.usual


def _product(chances: Sequence[float | None]) -> float | None:
    known = [each for each in chances if each is not None]
    return math.prod(known) if len(known) == len(chances) else None


def policy_power(
    policy: Policy, recipes: Sequence[Recipe], counts: Counts, level: float
) -> tuple[GatePower, ...]:
    """Compute every suite's chances; each needs a margin for the families.

    `counts` are available questions; `level` is that of one variant's gate.
    """
    gates = _gates(policy, recipes, counts, level)
    return tuple(gate.power() for gate in gates) + tuple(
        gate.power() for gate in _kind_gates(policy, recipes, counts, level)
    )


def check_power(
    policy: Policy,
    recipes: Sequence[Recipe],
    counts: Counts,
    level: float,
    progress: Progress,
) -> None:
    """Refuse suites that cannot decide; advisory ones need not.

    UsageError: a suite cannot pass a lossless variant, cannot tell it from guessing, or has several
    questions on a passage. Critical ones must pass MIN_CHANCE of lossless variants.
    """
    check_independence(policy, progress)
    found = [(g.suite.tier, g.refusal()) for g in _gates(policy, recipes, counts, level)]
    found += [(g.gate.tier, g.refusal()) for g in _kind_gates(policy, recipes, counts, level)]
    if (cost := policy.cost) is not None:
        asked = {n: _available(policy, n, counts) for n in cost.suites if n in policy.suites}
        found += [(cost.tier, _cost_refusal(name, number)) for name, number in asked.items()]
    for tier, refusal in found:
        if refusal is not None and tier != "advisory":
            raise refusal


def _cost_refusal(name: str, problems: int | None) -> UsageError | None:
    if problems is None or problems >= MIN_PROBLEMS:
        return None
    return UsageError(
        f"the cost of '{name}' cannot be decided: its interval takes {MIN_PROBLEMS} problems, and "
        f"there are {problems}",
        where="policy key cost.suites",
        hint="give more questions, leave that suite out, or 'tier: advisory'",
    )


def check_counted(
    policy: Policy,
    recipes: Sequence[Recipe],
    laid_out: Mapping[str, QuestionsResult],
    level: float,
    progress: Progress,
) -> None:
    """Check suites that laying out counts; raises as check_power."""
    suites = {
        name: suite
        for name, suite in policy.suites.items()
        if (suite.kind == "lm_eval" or suite.cluster_by) and name in laid_out
    }
    if suites:
        counted = policy.model_copy(update={"suites": suites})
        counts = {name: laid_out[name].units for name in suites}
        check_power(counted, recipes, counts, level, progress)


@dataclass(frozen=True)
class _SuiteGate:
    """One suite for a family."""

    name: str
    suite: AnySuite
    family: Family
    alpha: float
    questions: int | None

    @property
    def comparison(self) -> Comparison:
        return comparison_of(self.suite.margins[self.family])

    @property
    def unit(self) -> str:
        return "clusters" if self.suite.cluster_by else "questions"

    @property
    def kind(self) -> SuiteKind[Any]:
        return kind_of(self.suite)

    @property
    def flips(self) -> float:
        """Share of scores that change without loss."""
        if (usual := self.suite.usual.get(self.family)) is not None:
            return usual.flips
        return _FLIPS if self.kind.typical_change(self.suite) == 1 else _GRADED_FLIPS

    @property
    def must_exceed(self) -> float:
        """Score that a sensitive gate's baseline must exceed."""
        if self.comparison.kind == "points":
            return self.kind.guessing + self.comparison.size
        return self.kind.guessing / self.comparison.size

    def power(self) -> GatePower:
        refusal = self.refusal()
        usual = self.suite.usual.get(self.family)
        passes = of_usual = None
        words = f"{self.name}, {self.family}, {self.suite.tier}: {self.comparison.words}"
        if self.suite.tier == "advisory":
            refusal = None
            words = f"{self.name}, advisory: shown, decides nothing"
        elif self.questions is None:
            words += f"; how many {self.unit} there are is known once they are laid out"
        else:
            planned = planned_looks(self.questions, self.comparison.margin)
            looks = " or ".join(f"{look.n:,}" for look in planned)
            words += f", decided after {looks} {self.unit}"
            passes, said = self._outcome(0.0, "nothing")
            words += f"; {said}"
            if usual is not None:
                lost = f"{100 * usual.loss:g} points (usual, {100 * self.flips:g} % flips)"
                of_usual, said = self._outcome(usual.loss, lost)
                words += f"; {said}"
            if self.kind.asks_baseline_twice:
                words += f"; {words_at_sessions(self.comparison, self.alpha, self.flips)}"
            if self.must_exceed:
                words += f"; the baseline must score above {100 * self.must_exceed:.3g} %"
            if self.kind.scores_unrelated:
                words += (
                    "; its answers must be shown to score less on other questions, by more than "
                    "the margin: how they score there is not known yet"
                )
        return GatePower(
            gate=self.name,
            tier=self.suite.tier,
            family=self.family,
            alpha=self.alpha,
            units=self.questions,
            passes=passes,
            usual=of_usual,
            words=refusal.message if refusal else words,
        )

    def refusal(self) -> UsageError | None:
        """Return why the gate cannot be used, or None."""
        margin = self.suite.margins[self.family].words
        least = None
        if self.must_exceed < 1:
            least = min_questions_for_sensitivity(self.comparison, self.kind.guessing, self.alpha)
        if least is None or (self.questions is not None and least > self.questions):
            return self._error(
                f"the suite '{self.name}' could not tell a good variant from one that guesses: its "
                f"margin of {margin} reaches down to the score of guessing, "
                f"{100 * self.kind.guessing:g} %, unless the {self.unit} show that the baseline "
                f"scores above {100 * self.must_exceed:g} %",
                f"a stricter margin; or more {self.unit}; or 'tier: advisory'",
            )
        if self.questions is None:
            return None
        if (least := self._min_questions()) > self.questions:
            return self._error(
                f"the suite '{self.name}' cannot decide its margin of {margin}: even when no "
                f"answer changes it takes {least} {self.unit}, and there are {self.questions}",
                f"give more {self.unit} (suites.*.questions, --eval-data, or where the Hub can be "
                "reached); or a wider margin; or 'tier: advisory'",
            )
        if self.suite.tier != "critical" or self._is_likely():
            return None
        if (passes := self._outcome(0.0, "")[0]) >= MIN_CHANCE:
            return None
        return self._error(
            f"the suite '{self.name}' would pass only {100 * passes:.0f} % of the variants that "
            f"lose nothing: {margin}, {self.questions} {self.unit}, {100 * self.flips:g} % of the "
            "answers expected to flip",
            f"a wider margin; or more {self.unit}; or 'tier: supporting'",
        )

    def _outcome(self, loss: float, lost: str) -> tuple[float, str]:
        """Return the chance with that loss, and a sentence."""
        assert self.questions is not None
        found = chances(
            self.comparison,
            self.alpha,
            self.questions,
            flips=self.flips,
            loss=loss,
            size=self.kind.typical_change(self.suite),
            baseline=self.kind.assumed_baseline,
        )
        if self.suite.tier == "supporting":
            words = f"fails {format_chance(found.fails)} of variants that lose {lost}"
            return 1 - found.fails, words
        return found.passes, f"passes {format_chance(found.passes)} of variants that lose {lost}"

    def _is_likely(self) -> bool:
        """Return whether about half of such variants pass."""
        assert self.questions is not None
        last = planned_looks(self.questions, self.comparison.margin)[-1]
        deviation = self.kind.typical_change(self.suite) * math.sqrt(self.flips / last.n)
        reach = NormalDist().inv_cdf(1 - self.alpha * last.share) * deviation + 1 / last.n
        return self.comparison.kind == "points" and reach <= self.comparison.size

    def _min_questions(self) -> int:
        """Return how many unchanged answers could pass."""
        return min_unchanged_values(self.comparison.allowed_drop(1.0), self.alpha)

    def _error(self, message: str, hint: str) -> UsageError:
        where = f"policy key suites.{self.name}.margins.{self.family}"
        return UsageError(message, where=where, hint=hint)


@dataclass(frozen=True)
class _KindGatePower:
    """A suite's own gate on one kind of decision, for a family."""

    suite: str
    name: str
    gate: KindGate
    family: Family
    alpha: float
    flips: float
    sessions: int | None  # that have such a turn; None if unknown

    @property
    def comparison(self) -> Comparison:
        return Comparison.points(self.gate.margins[self.family])

    def power(self) -> GatePower:
        margin = self.gate.margins[self.family]
        words = (
            f"{self.name}, {self.family}, {self.gate.tier}: a margin of {100 * margin:g} points of "
            "such turns"
        )
        passes = None
        if self.gate.tier == "advisory":
            words = f"{self.name}, advisory: shown, decides nothing"
        elif self.sessions is None:
            words += "; how many sessions there are is known once they are laid out"
        else:
            found = one_look(self.comparison, self.alpha, self.sessions, self.flips, 0.0)
            is_critical = self.gate.tier == "critical"
            passes = found.passes if is_critical else 1 - found.fails
            said = "passes" if is_critical else "fails"
            chance = found.passes if is_critical else found.fails
            words += (
                f", about {self.sessions:,} sessions (assumed: {100 * self.gate.sessions:g} % have "
                f"such a turn); {said} {format_chance(chance)} of variants that lose nothing"
            )
            words += f"; {words_at_sessions(self.comparison, self.alpha, self.flips)}"
        return GatePower(
            gate=self.name,
            tier=self.gate.tier,
            family=self.family,
            alpha=self.alpha,
            units=self.sessions,
            passes=passes,
            usual=passes,
            words=words,
        )

    def refusal(self) -> UsageError | None:
        """Return why a critical gate cannot pass, or None."""
        least = min_identical_values(self.gate.margins[self.family], self.alpha)
        if self.gate.tier != "critical" or self.sessions is None or self.sessions >= least:
            return None
        return UsageError(
            f"the gate '{self.name}' cannot pass: even when no decision changes it takes {least} "
            f"sessions with such a turn, and about {self.sessions} are assumed",
            where=f"policy key suites.{self.suite}, margins of {self.family}",
            hint="give more sessions; or a wider margin; or 'tier: supporting'; 'sessions' is the "
            "assumed share that has such a turn",
        )


SHOWN_SESSIONS = (50, 200, 1_000)


def one_look(
    comparison: Comparison, alpha: float, sessions: int, flips: float, loss: float
) -> Chances:
    """Return the chances of a gate with one look at the end."""
    looks = (Look(sessions, 1.0),)
    return chances(comparison, alpha, sessions, flips=flips, loss=loss, looks=looks)


def words_at_sessions(comparison: Comparison, alpha: float, flips: float) -> str:
    """Return what numbers of sessions decide, as a sentence."""
    twice = min(0.95, 2 * comparison.size)
    found = [
        [one_look(comparison, alpha, n, flips, loss) for loss in (0.0, twice)]
        for n in SHOWN_SESSIONS
    ]
    passes = " / ".join(format_chance(same.passes) for same, _ in found)
    fails = " / ".join(format_chance(worse.fails) for _, worse in found)
    counts = " / ".join(f"{n:,}" for n in SHOWN_SESSIONS)
    return (
        f"{counts} such sessions pass {passes} of variants that lose nothing, and fail {fails} of "
        f"those that lose {100 * twice:g} points"
    )


def _kind_gates(
    policy: Policy, recipes: Sequence[Recipe], counts: Counts, level: float
) -> Iterator[_KindGatePower]:
    """Yield the gates that suites of decisions have besides their own."""
    for gate in _gates(policy, recipes, counts, level):
        for kind, own in gates_of(gate.suite):
            if gate.family in own.margins:
                sessions = gate.questions
                yield _KindGatePower(
                    gate.name,
                    gate_name(gate.name, kind, own),
                    own,
                    gate.family,
                    gate.alpha,
                    gate.flips,
                    None if sessions is None else max(1, round(own.sessions * sessions)),
                )


def _gates(
    policy: Policy, recipes: Sequence[Recipe], counts: Counts, level: float
) -> Iterator[_SuiteGate]:
    families = dict.fromkeys(each.family for each in recipes if each.family != "baseline")
    for name, suite in policy.suites.items():
        questions = _available(policy, name, counts)
        if policy.undecided_supporting == "hold" and suite.tier == "supporting":
            suite = suite.model_copy(update={"tier": "critical"})  # it must pass, too
        for family in families:
            yield _SuiteGate(name, suite, family, level, questions)


def _available(policy: Policy, name: str, counts: Counts) -> int | None:
    """Return how many questions or clusters a suite asks at most; None if unknown."""
    known = [each for each in (policy.suites[name].questions, counts[name]) if each is not None]
    return min(known, default=None)


def format_chance(chance: float | None) -> str:
    """Format a chance; 100 % and 0 % are exact. None: a suite is not counted yet."""
    if chance is None:
        return "a share that is known once the questions are laid out"
    if 0 < chance < 1e-6:
        return "practically none"
    if 0 < chance < 0.005:
        return "< 1 %"
    return f"{100 * chance:.0f} %" if chance < 0.995 or chance == 1 else "> 99 %"
