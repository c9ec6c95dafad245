"""Chance that a policy's gates of answers pass, before any work.

Speed gates are in `speed_power.py`, those of single kinds of decisions in `decision_power.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import NormalDist
from typing import Any

from eval_gates.cost import MIN_PROBLEMS
from eval_gates.decisions.task import gate_name, gates_of
from eval_gates.statistics.assay_sensitivity import check_sensitivity, min_questions_for_sensitivity
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.looks import min_unchanged_values, planned_looks
from eval_gates.statistics.multiplicity import gate_level
from eval_gates.stopping import comparison_of
from eval_gates.suites.suite_kind import SuiteKind, kind_of
from pipeline.plan.known_questions import KnownQuestions, clusters_asked
from pipeline.plan.recorded_arm import RecordedArm
from pipeline.preflight.chances import (
    Chances,
    GatePower,
    chance_of_sensitivity,
    chances,
    format_chance,
)
from pipeline.preflight.decision_power import DecisionGatePower, words_at_sessions
from pipeline.preflight.seen_parts import words_on_parts
from pipeline.stages.questions import QuestionsResult
from pipeline.stages.recorded import engine_margin
from prepare.errors import UsageError
from recipes.policy import AnySuite, Margin, Policy
from recipes.schema import Family, Recipe

Known = Mapping[str, KnownQuestions]
"""By suite."""

MIN_CHANCE = 0.2
"""Below it a critical gate is refused: nearly every good variant would stay undecided."""
ENGINE_FLIPS = 0.01
"""Share of right answers that two starts of one engine change."""
SURE = 0.995
"""Above it a chance is not worth a word."""
LIKELY = 0.8
"""Below it half of a margin would often leave an unchanged engine undecided."""
_FLIPS = 0.04
_GRADED_FLIPS = 0.6  # share of changed scores, where the policy states none
RATIO = (1.0, 1.05)
"""True ratios of speed: if nothing changes, and of a usual good variant."""


def joint_power(gates: Sequence[GatePower]) -> dict[Family, tuple[float | None, float | None]]:
    """Return each family's chances to pass all suites, without loss and usual.

    Suites count as independent. None: a number is unknown.
    """
    powers: dict[Family, tuple[float | None, float | None]] = {}
    for family in dict.fromkeys(g.family for g in gates if g.family and g.tier == "critical"):
        of = [gate for gate in gates if gate.family == family and gate.tier != "advisory"]
        nothing = [gate.passes for gate in of]
        usual = [gate.usual for gate in of]
        powers[family] = _product(nothing), _product(usual)
    return powers


def promotion_power(gates: Sequence[GatePower]) -> dict[Family, list[float | None]]:
    """Return each family's chance of a promotion, at each true ratio of :data:`RATIO`.

    All suites and speed gates together, for the policy's usual variant, or one that loses nothing.
    Limits are of a usual variant. None: a number is unknown.
    """
    powers: dict[Family, list[float | None]] = {}
    speed = [gate for gate in gates if gate.family is None and gate.tier != "advisory"]
    for family, (nothing, usual) in joint_power(gates).items():
        suites = nothing if usual is None else usual
        powers[family] = [
            _product([suites, *(_at_ratio(gate, place) for gate in speed)])
            for place in range(len(RATIO))
        ]
    return powers


def _at_ratio(gate: GatePower, place: int) -> float | None:
    is_ratio = gate.gate.startswith("ratio.")
    return (gate.passes, gate.usual)[place] if is_ratio else gate.usual


def _product(chances: Sequence[float | None]) -> float | None:
    known = [chance for chance in chances if chance is not None]
    return math.prod(known) if len(known) == len(chances) else None


def policy_power(
    policy: Policy,
    recipes: Sequence[Recipe],
    known: Known,
    level: float,
) -> tuple[GatePower, ...]:
    """Compute every suite's chances; each needs a margin for the families.

    `level` is that of one variant's gate.
    """
    gates = _gates(policy, recipes, known, level)
    return tuple(gate.power() for gate in gates) + tuple(
        gate.power() for gate in _kind_gates(policy, recipes, known, level)
    )


def engine_margins(record: RecordedArm) -> dict[str, Margin]:
    """Return by suite what another engine under a recorded arm may lose.

    It is what the policy names, else half of the suite's margin; where too few answers are recorded
    for an unchanged engine to pass that mostly, the whole.
    """
    policy = record.judged.policy
    family = record.judged.family
    level = gate_level(policy.alpha, policy.attempts, 1)
    margins = {}
    for name, known in record.known().items():
        margins[name] = decidable_margin(policy, name, family, level, known.clusters)
    return margins


def recheck_notes(policy: Policy, recipes: Sequence[Recipe], known: Known) -> Iterator[str]:
    """Yield suites that a variant may leave with too few answers to compare another engine by.

    One that is decided at its first look is asked nothing more.
    """
    level = gate_level(policy.alpha, policy.attempts, 1)
    families = dict.fromkeys(recipe.family for recipe in recipes)
    for name, suite in policy.suites.items():
        units = known[name].units(suite)
        for family in families:
            if family == "baseline" or units is None:
                continue
            margin = comparison_of(suite.margins[family]).margin
            asks_all = kind_of(suite).asks_baseline_twice or suite.parts_by is not None
            first = units if asks_all else planned_looks(units, margin)[0].n
            wanted = engine_margin(policy, name, family)
            if policy.engine_margin(name, family) is not None:
                compared = suite.model_copy(update={"margins": {family: wanted}})
                gate = _SuiteGate(name, compared, family, level, KnownQuestions.so_many(first))
                if gate.refusal() is not None:
                    yield (
                        f"{name}: {family} may be decided after {first:,} answers, too few for the "
                        f"{wanted.words} of the policy's key engine: `prepare recheck` would refuse"
                    )
            elif decidable_margin(policy, name, family, level, first) != wanted:
                yield (
                    f"{name}: {family} may be decided after {first:,} answers, too few for half of "
                    "its margin: `prepare recheck` would compare another engine by the whole"
                )


def decidable_margin(
    policy: Policy, name: str, family: Family, level: float, count: int | None
) -> Margin:
    """Return what another engine may lose on a suite with so many recorded answers."""
    margin = engine_margin(policy, name, family)
    suite = policy.suites[name]
    halved = suite.model_copy(update={"margins": {**suite.margins, family: margin}})
    is_named = policy.engine_margin(name, family) is not None
    gate = _SuiteGate(name, halved, family, level, KnownQuestions.so_many(count))
    return margin if is_named or gate.passes_unchanged() else suite.margins[family]


def check_power(
    policy: Policy,
    recipes: Sequence[Recipe],
    known: Known,
    level: float,
) -> None:
    """Refuse suites that cannot decide; advisory ones need not.

    UsageError: a suite cannot pass a lossless variant, or cannot tell it from guessing. Critical
    ones must pass MIN_CHANCE of lossless variants.
    """
    suites = _gates(policy, recipes, known, level)
    kinds = _kind_gates(policy, recipes, known, level)
    refusals = [(gate.suite.tier, gate.refusal()) for gate in suites]
    refusals += [(gate.gate.tier, gate.refusal()) for gate in kinds]
    if (cost := policy.cost) is not None:
        named = {name: policy.suites[name] for name in cost.suites if name in policy.suites}
        refusals += [
            (cost.tier, _cost_refusal(name, known[name].units(suite)))
            for name, suite in named.items()
        ]
    for tier, refusal in refusals:
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
) -> None:
    """Check suites that laying out counts; raises as check_power."""
    suites = {
        name: suite
        for name, suite in policy.suites.items()
        # Gates on kinds of decisions are of local logs, which were counted before.
        if (suite.kind == "lm_eval" or suite.cluster_by)
        and not gates_of(suite)
        and name in laid_out
    }
    if suites:
        counted = policy.model_copy(update={"suites": suites})
        known = {}
        for name, suite in suites.items():
            number = laid_out[name].units
            if suite.cluster_by:
                number = clusters_asked(number, laid_out[name].questions, suite.questions)
            known[name] = KnownQuestions.so_many(number)
        check_power(counted, recipes, known, level)


@dataclass(frozen=True)
class _SuiteGate:
    """One suite for a family."""

    name: str
    suite: AnySuite
    family: Family
    alpha: float
    known: KnownQuestions

    @property
    def questions(self) -> int | None:
        """Number of questions or clusters."""
        return self.known.units(self.suite)

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

    @property
    def baseline(self) -> float:
        """Score that the baseline is assumed to have."""
        return self.suite.assumed_baseline or self.kind.assumed_baseline

    @property
    def sensitivity(self) -> float:
        """Chance that such a baseline shows it; 1 where that depends on more than its score."""
        if self.questions is None or self.kind.typical_change(self.suite) < 1:
            return 1.0
        if self.empty_score is not None:
            return 0.0
        return chance_of_sensitivity(
            self.comparison,
            self.alpha,
            self.questions,
            guessing=self.kind.guessing,
            baseline=self.baseline,
        )

    @property
    def empty_score(self) -> float | None:
        """Score of empty answers by the log's own, if a baseline that decides so is insensitive."""
        if self.known.logged is None or not self.known.logged.empty or not self.questions:
            return None
        empty = list(islice(cycle(self.known.logged.empty), self.questions))
        scores = [self.baseline] * self.questions
        check = check_sensitivity("empty", scores, empty, self.comparison)
        return check.score if check.p_insensitive > self.alpha else None

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
            if self.suite.cluster_by:
                words += ", of which each is assumed to change as a whole"
            if self.kind.asks_baseline_twice:
                words += " (all are asked)"
            elif self.suite.parts_by is not None:
                words += " (a pass takes all of them)"
            passes, said = self._outcome(0.0, "nothing")
            words += f"; {said}"
            if usual is not None:
                lost = f"{100 * usual.loss:g} points (usual, {100 * self.flips:g} % flips)"
                of_usual, said = self._outcome(usual.loss, lost)
                words += f"; {said}"
            if self.kind.asks_baseline_twice:
                words += f"; {words_at_sessions(self.comparison, self.alpha, self.flips)}"
            words += "".join(f"; {said}" for said in self._words_on_parts())
            if self.must_exceed:
                words += f"; the baseline must score above {100 * self.must_exceed:.3g} %"
            if self.comparison.kind == "recovery" or self.sensitivity < SURE:
                words += f"; it is assumed to score {100 * self.baseline:g} %"
            if (empty := self.empty_score) is not None:
                words += (
                    f"; by the log's own answers an empty one decides alike in {100 * empty:.3g} % "
                    "of the turns, so the gate is insensitive: give sessions with more calls, or "
                    "gate the kinds"
                )
            elif self.sensitivity < SURE:
                shown = format_chance(self.sensitivity)
                words += f", which shows that the gate is sensitive with a chance of {shown}"
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
        # Whether a baseline will be sensitive is an assumption, and refuses nothing.
        if (passes := self._chances(0.0).passes) >= MIN_CHANCE:
            return None
        return self._error(
            f"the suite '{self.name}' would pass only {100 * passes:.0f} % of the variants that "
            f"lose nothing: {margin}, {self.questions} {self.unit}, {100 * self.flips:g} % of the "
            "answers expected to flip",
            f"a wider margin; or more {self.unit}; or 'tier: supporting'",
        )

    def passes_unchanged(self) -> bool:
        """Return whether an engine that changes nothing mostly passes."""
        if self.questions is None or self.refusal() is not None:
            return False
        size = self.kind.typical_change(self.suite)
        flips = self.flips if size < 1 else min(self.flips, ENGINE_FLIPS)
        of_nothing = chances(
            self.comparison,
            self.alpha,
            self.questions,
            flips=flips,
            loss=0.0,
            size=size,
            baseline=self.baseline,
        )
        return of_nothing.passes >= LIKELY

    def _chances(self, loss: float) -> Chances:
        """Return the chances of a sensitive gate."""
        assert self.questions is not None
        return chances(
            self.comparison,
            self.alpha,
            self.questions,
            flips=self.flips,
            loss=loss,
            size=self.kind.typical_change(self.suite),
            baseline=self.baseline,
        )

    def _outcome(self, loss: float, lost: str) -> tuple[float, str]:
        """Return the chance with that loss, and a sentence."""
        outcome = self._chances(loss)
        if self.suite.tier == "supporting":
            words = f"fails {format_chance(outcome.fails)} of variants that lose {lost}"
            return 1 - outcome.fails, words
        passes = outcome.passes * self.sensitivity
        return passes, f"passes {format_chance(passes)} of variants that lose {lost}"

    def _is_likely(self) -> bool:
        """Return whether about half of such variants pass."""
        assert self.questions is not None
        last = planned_looks(self.questions, self.comparison.margin)[-1]
        deviation = self.kind.typical_change(self.suite) * math.sqrt(self.flips / last.n)
        reach = NormalDist().inv_cdf(1 - self.alpha * last.share) * deviation + 1 / last.n
        return self.comparison.kind == "points" and reach <= self.comparison.size

    def _words_on_parts(self) -> Iterator[str]:
        """Yield of which tools and values of `parts_by` a whole loss would be seen.

        What the kind itself splits, such as abilities or subjects, has its share of the level, and
        where clusters have several questions, so has the loss by question.
        """
        partitions = 2 + bool(self.known.parts) * self.kind.asks_baseline_twice
        level = self.alpha / partitions / (2 if self.suite.cluster_by else 1)
        if self.known.logged is not None and len(self.known.logged.tools) > 1:
            named = "tools that the log calls"
            yield words_on_parts(self.comparison, level, self.known.logged.tools, named, "sessions")
        if self.known.parts:
            fall = (self.baseline, self.kind.guessing)
            scores = " to ".join(f"{100 * score:.3g}" for score in fall)
            named = f"values of '{self.suite.parts_by}' (a fall from {scores} %)"
            yield words_on_parts(self.comparison, level, self.known.parts, named, self.unit, fall)

    def _min_questions(self) -> int:
        """Return how many unchanged answers could pass."""
        return min_unchanged_values(self.comparison.allowed_drop(1.0), self.alpha)

    def _error(self, message: str, hint: str) -> UsageError:
        where = f"policy key suites.{self.name}.margins.{self.family}"
        return UsageError(message, where=where, hint=hint)


def _kind_gates(
    policy: Policy, recipes: Sequence[Recipe], known: Known, level: float
) -> Iterator[DecisionGatePower]:
    """Yield the gates that suites of decisions have besides their own."""
    for gate in _gates(policy, recipes, known, level):
        for kind, own in gates_of(gate.suite):
            if gate.family in own.margins:
                if policy.undecided_supporting == "hold" and own.tier == "supporting":
                    own = own.model_copy(update={"tier": "critical"})  # it must pass, too
                name = gate_name(gate.name, kind, own)
                usual = gate.suite.usual.get(gate.family)
                yield DecisionGatePower(
                    suite=gate.name,
                    name=name,
                    gate=own,
                    family=gate.family,
                    alpha=gate.alpha,
                    flips=gate.flips,
                    of_all=gate.questions,
                    known_share=gate.known.logged.shares.get(gate_name("", kind, own))
                    if gate.known.logged is not None
                    else None,
                    usual_loss=usual.loss if usual is not None else None,
                )


def _gates(
    policy: Policy, recipes: Sequence[Recipe], known: Known, level: float
) -> Iterator[_SuiteGate]:
    families = dict.fromkeys(recipe.family for recipe in recipes if recipe.family != "baseline")
    for name, suite in policy.suites.items():
        if policy.undecided_supporting == "hold" and suite.tier == "supporting":
            suite = suite.model_copy(update={"tier": "critical"})  # it must pass, too
        for family in families:
            yield _SuiteGate(name, suite, family, level, known[name])
