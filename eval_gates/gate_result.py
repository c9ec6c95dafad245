"""One gate's result of one variant. Only `show` rounds figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from prepare.record import ForeignText, Record
from recipes.config_model import Tier

Verdict = Literal["pass", "fail", "undecided"]
Side = Literal["baseline", "candidate"]
SCORE: Literal["score"] = "score"
POINTS: Literal["points"] = "points"
RATIO: Literal["ratio"] = "ratio"


DECIDES_NOTHING = "shown only"
"""In the place of an advisory gate's verdict."""


def not_shown(gates: Sequence[GateResult]) -> str:
    """Return the gates and parts that a pass says nothing of, with what they measured; else ''."""
    doubtful = [gate for gate in gates if gate.is_doubtful]
    failed = [gate.shortfall for gate in doubtful if gate.verdict == "fail"]
    others = [gate.shortfall for gate in doubtful if gate.verdict != "fail"]
    alone = [doubt for gate in gates for doubt in gate.doubts]
    words = [
        f"not shown on {', '.join(others)}" if others else "",
        f"failed on {', '.join(failed)}" if failed else "",
        f"looked at alone: {', '.join(alone)}" if alone else "",
    ]
    return "; ".join(filter(None, words))


def passed_on(gates: Sequence[GateResult]) -> str:
    """Return the names of the deciding gates that passed."""
    return ", ".join(gate.name for gate in gates if gate.verdict == "pass" and gate.decides)


def blocks(verdict: str, tier: Tier) -> bool:
    """Return whether a verdict keeps its variant from passing."""
    return (verdict == "fail" and tier != "advisory") or (
        verdict == "undecided" and tier == "critical"
    )


class GateResult(Record):
    """A gate's figures, its verdict, and why."""

    name: str = Field(description="suite, 'speed ratio.chat' or 'cost gsm8k'")
    metric: str = Field("", description="what is measured, such as acc or output tokens/s")
    tier: Tier = Field(
        "critical",
        description="critical must pass, supporting must not fail, advisory never blocks",
    )
    n: int = Field(0, description="questions (or clusters), blocks or loads that decided")
    counted: str = Field("", description="the same in words")
    unit: str = Field(SCORE, description="of both sides: score (0 to 1), tokens/s, ...")
    baseline: float | None = None
    candidate: float | None = None
    scale: Literal["points", "ratio"] = Field(POINTS, description="of estimate, bound, threshold")
    estimate: float | None = Field(
        None, description="candidate minus baseline, paired; for a ratio candidate over baseline"
    )
    lower: float | None = Field(None, description="one-sided bound of the estimate")
    upper: float | None = Field(None, description="likewise")
    bound: float | None = Field(None, description="what is compared with the threshold")
    threshold: float = 0.0
    allowed: float | None = Field(None, description="estimate that is exactly on the margin")
    direction: Literal["above", "below"] = Field("above", description="where the bound must be")
    margin: str = Field("", description="what is asked for, in words")
    kept: float | None = Field(None, description="share of the baseline, for a recovery margin")
    alpha: float | None = Field(None, description="error rate of the verdict, over all looks")
    p_value: float | None = Field(None, ge=0, le=1, description="of 'the requirement is not met'")
    verdict: Verdict | Literal["error", "skipped"]
    reason: ForeignText = Field(description="the verdict in words, with its statistics")
    holds: bool = Field(False, description="undecided, it blocks, as the policy asks")
    suspicious: bool = Field(False, description="shown to be better, by more than is plausible")

    @property
    def lengths(self) -> str:
        """Lengths of generated answers, and the unfinished; else ''."""
        return ""

    @property
    def shares(self) -> str:
        """Conversations by their share of kept tokens, or decisions by their kind; else ''."""
        return ""

    @property
    def by_depth(self) -> str:
        """Scores by the tokens before the answer; else ''."""
        return ""

    @property
    def by_part(self) -> str:
        """The largest losses by the field that splits the questions; else ''."""
        return ""

    @property
    def shown_losses(self) -> str:
        """Parts that are shown lost, to follow the gate's name; else ''."""
        return ""

    @property
    def doubts(self) -> list[str]:
        """Parts that a pass may have lost, in words."""
        return []

    @property
    def floor(self) -> str:
        """What serving alone changes; else ''."""
        return ""

    @property
    def details(self) -> dict[str, str]:
        """Further exact figures."""
        own = type(self).model_fields.keys() - GateResult.model_fields.keys() | {"n", "alpha"}
        words = ["lengths", "shares", "by_depth", "by_part", "floor"]
        values = {name: getattr(self, name) for name in [*own, "margin", "p_value", *words]}
        return {
            name: str(value)
            for name, value in sorted(values.items())
            if isinstance(value, str | int | float) and value != ""
        }

    @property
    def blocks(self) -> bool:
        """Whether the variant must not pass."""
        if self.verdict == "error" or self.verdict == "skipped":
            return self.verdict == "error"
        is_held = self.holds and self.verdict == "undecided"
        return is_held or blocks(self.verdict, self.tier)

    @property
    def decides(self) -> bool:
        """Whether its verdict can count; an advisory gate is only shown."""
        return self.tier != "advisory"

    @property
    def lost_too_much(self) -> bool:
        """Whether the estimate itself is beyond what is allowed; the bounds do not count."""
        limit = self.allowed if self.allowed is not None else self.threshold
        if self.estimate is None or not self.margin:
            return False
        return self.estimate < limit if self.direction == "above" else self.estimate > limit

    @property
    def is_doubtful(self) -> bool:
        """Whether a pass has to name it: it was not shown to hold, or lost more than its margin."""
        if self.verdict == "fail" or (self.decides and self.verdict == "undecided"):
            return True
        return self.verdict != "skipped" and self.lost_too_much

    @property
    def sign(self) -> str:
        """Where the bound must be, before its figure."""
        return ">" if self.direction == "above" else "<"

    @property
    def shown_verdict(self) -> str:
        """The verdict for a table."""
        return self.verdict if self.decides else DECIDES_NOTHING

    @property
    def shortfall(self) -> str:
        """Name and estimate against the margin, of a gate that did not pass."""
        if self.estimate is None:
            return f"{self.name} (not measured)"
        estimate = self.show_estimate(1)
        if self.scale == POINTS and self.allowed is not None:
            return f"{self.name} ({estimate} points; at most {-100 * self.allowed:.4g} may be lost)"
        return f"{self.name} ({estimate}, {self.margin})"

    @property
    def shown_metric(self) -> str:
        """The metric, where the gate's name does not say it."""
        return self.metric

    @property
    def title(self) -> str:
        """Name with metric, and whether it only supports; of an advisory one the verdict tells."""
        metric = f" {self.metric}" if self.unit == SCORE and self.shown_metric else ""
        return f"{self.name}{metric}{', supporting' if self.tier == 'supporting' else ''}"

    def cells(self, places: int = 2) -> dict[str, str]:
        """Return cells by heading."""
        before, after = self.show_sides(places)
        number, _, unit = before.partition(" ")
        is_one_unit = bool(unit) and after.endswith(f" {unit}")
        bound = "" if self.bound is None else f"{self.sign} {self._show_limit(self.bound, places)}"
        needed = f"{self.sign} {self._show_limit(self.threshold, places)}" if self.margin else ""
        if self.kept is not None:
            bound = format_percent(self.kept, 1)
            needed = self.margin
        return {
            "gate": f"{self.title} ({self.counted})" if self.counted else self.title,
            "baseline to candidate": " to ".join(
                filter(None, [number if is_one_unit else before, after])
            ),
            "difference": self.show_estimate(places),
            "bound": bound,
            "needed": needed,
            "verdict": self.shown_verdict,
        }

    def _show_limit(self, value: float, places: int) -> str:
        return show(value, self.scale, places).removeprefix("x ")

    def show_sides(self, places: int = 2) -> tuple[str, str]:
        """Return baseline and candidate as text."""
        return show(self.baseline, self.unit, places), show(self.candidate, self.unit, places)

    def show_estimate(self, places: int = 2) -> str:
        return show(self.estimate, self.scale, places)

    def show_bound(self, places: int = 2) -> str:
        """Return the bound with its direction, or the recovery; then the margin."""
        margin = self.margin
        if self.unit == SCORE:
            margin = (
                f"margin {100 * self.threshold:+g}" if self.kept is None else f"margin {margin}"
            )
        if self.kept is not None:
            return f"{format_percent(self.kept, 1)} of the baseline, {margin}"
        if self.bound is None:
            return margin
        return f"{self.sign} {show(self.bound, self.scale, places)}, {margin}"

    def show_difference(self, places: int = 2) -> str:
        """Return the estimate with bound and margin."""
        return f"{self.show_estimate(places)} ({self.show_bound(places)})"


def show(value: float | None, unit: str, places: int) -> str:
    """Return a figure as text."""
    if value is None:
        return ""
    if unit == SCORE:
        return format_percent(value, places)
    if unit == POINTS:
        return format_points(value, places)
    if unit == RATIO:
        return f"x {value:.{places + 1}f}"
    return f"{value:g} {unit}" if unit.startswith("of ") else f"{value:,.{places - 1}f} {unit}"


def format_points(fraction: float, places: int = 2) -> str:
    """Format a fraction as signed percentage points."""
    return f"{100 * fraction:+.{places}f}"


def format_percent(fraction: float | None, places: int = 2, *, nothing: str = "-") -> str:
    """Format a score or a share; `nothing` for None."""
    return nothing if fraction is None else f"{100 * fraction:.{places}f} %"
