"""Chance that a gate on one kind of decision passes, before any work."""

from __future__ import annotations

from dataclasses import dataclass

from eval_gates.decisions.task import KindGate
from eval_gates.statistics.bound import min_identical_values
from eval_gates.statistics.comparison import Comparison
from pipeline.preflight.chances import GatePower, format_chance, one_look
from prepare.errors import UsageError
from recipes.schema import Family

_SHARE = 0.5  # of the sessions, where neither policy nor log tells
SHOWN_SESSIONS = (50, 200, 1_000)


@dataclass(frozen=True)
class DecisionGatePower:
    """Power of a suite's own gate on one kind of decision, for a family."""

    suite: str
    name: str
    gate: KindGate
    family: Family
    alpha: float
    flips: float
    of_all: int | None  # sessions; None if unknown
    known_share: float | None  # of sessions with such a turn, by answers that are there already
    usual_loss: float | None = None  # of a usual variant; None where the policy states none

    @property
    def comparison(self) -> Comparison:
        return Comparison.points(self.gate.margins[self.family])

    @property
    def sessions(self) -> int | None:
        """Return how many have such a turn; None if unknown."""
        return None if self.of_all is None else max(1, round(self.share * self.of_all))

    @property
    def share(self) -> float:
        """Return the share of sessions that have such a turn."""
        known = (self.known_share, self.gate.sessions)
        return next((share for share in known if share is not None), _SHARE)

    @property
    def source(self) -> str:
        """Return where the number of sessions is from."""
        if self.known_share is not None:
            return "those that have such a turn, by the answers of the log or on record"
        return f"assumed: {100 * self.share:g} % have such a turn"

    def power(self) -> GatePower:
        margin = self.gate.margins[self.family]
        words = (
            f"{self.name}, {self.family}, {self.gate.tier}: a margin of {100 * margin:g} points of "
            "such turns"
        )
        passes = of_usual = None
        if self.gate.tier == "advisory":
            words = f"{self.name}, advisory: shown, decides nothing"
        elif self.sessions is None:
            words += "; how many sessions there are is known once they are laid out"
        else:
            lossless = one_look(self.comparison, self.alpha, self.sessions, self.flips, 0.0)
            is_critical = self.gate.tier == "critical"
            passes = lossless.passes if is_critical else 1 - lossless.fails
            of_usual = passes
            if self.usual_loss is not None:
                usual = one_look(
                    self.comparison, self.alpha, self.sessions, self.flips, self.usual_loss
                )
                of_usual = usual.passes if is_critical else 1 - usual.fails
            said = "passes" if is_critical else "fails"
            chance = lossless.passes if is_critical else lossless.fails
            words += (
                f", about {self.sessions:,} sessions ({self.source}); {said} "
                f"{format_chance(chance)} of variants that lose nothing"
            )
            words += f"; {words_at_sessions(self.comparison, self.alpha, self.flips)}"
        return GatePower(
            gate=self.name,
            tier=self.gate.tier,
            family=self.family,
            alpha=self.alpha,
            units=self.sessions,
            passes=passes,
            usual=of_usual,
            words=words,
        )

    def refusal(self) -> UsageError | None:
        """Return why a critical gate cannot pass, or None."""
        least = min_identical_values(self.gate.margins[self.family], self.alpha)
        if self.gate.tier != "critical" or self.sessions is None or self.sessions >= least:
            return None
        share = (
            "; or, next to the margins, the share of your sessions that has such a turn (key "
            "'sessions')"
        )
        return UsageError(
            f"the gate '{self.name}' cannot pass: even when no decision changes it takes {least} "
            f"sessions with such a turn, and there are about {self.sessions} ({self.source})",
            where=f"policy key suites.{self.suite}, margins of {self.family}",
            hint="give more sessions; or a wider margin; or 'tier: supporting'"
            + (share if self.known_share is None else ""),
        )


def words_at_sessions(comparison: Comparison, alpha: float, flips: float) -> str:
    """Return what numbers of sessions decide, as a sentence."""
    twice = min(0.95, 2 * comparison.size)
    chances_by_number = [
        [one_look(comparison, alpha, n, flips, loss) for loss in (0.0, twice)]
        for n in SHOWN_SESSIONS
    ]
    passes = " / ".join(format_chance(same.passes) for same, _ in chances_by_number)
    fails = " / ".join(format_chance(worse.fails) for _, worse in chances_by_number)
    counts = " / ".join(f"{n:,}" for n in SHOWN_SESSIONS)
    return (
        f"{counts} such sessions pass {passes} of variants that lose nothing, and fail {fails} of "
        f"those that lose {100 * twice:g} points"
    )
