"""Output tokens a second of the candidate over the baseline's, decided from paired blocks.

A block is both sides, one after the other in an order drawn by chance, with the same prompts. What
decides is y = ln(candidate / baseline) - ln(minimum) of each block; the claim is about the typical
block: half of all such blocks have a ratio of at least the minimum. The blocks are taken to be
independent, and to scatter as much above the typical one as below (see symmetry.py).

Two lives of one server differ by more than two blocks of one life. Where both sides stay up, the
blocks say nothing of that: the ratio must then be above the minimum by an allowance, which a pair
of equal servers exceeds with probability `allowance_alpha`; that part of the error rate is not the
blocks' to spend. Where lives alternate, a pair of lives is one value, the mean of its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from eval_gates.records import TrailPoint
from eval_gates.speed import symmetry
from eval_gates.speed.finding import SpeedFinding, State
from eval_gates.speed.lives import RuleOfLives
from eval_gates.speed.load import MeasuredLoad
from eval_gates.speed.steady import output_rate
from eval_gates.speed.trust import Distrust, distrusted, failures, unlike

if TYPE_CHECKING:
    from eval_gates.speed.symmetry import FloatArray


class RatioRule(RuleOfLives):
    """What decides a ratio."""

    minimum: float = Field(gt=0, description="smallest acceptable ratio")
    alpha: float = Field(gt=0, lt=0.5, description="error rate of a pass, and of a fail")
    blocks: int = Field(ge=1, description="at most; pairs of lives where these alternate")
    hit_rate: float | None = Field(None, description="that the workload declares")
    allowance: float = Field(0.0, ge=0, description="of ln(ratio), for how lives differ")
    allowance_alpha: float = Field(0.0, ge=0, lt=0.5, description="the share of alpha in it")

    @property
    def unit(self) -> str:
        """What it counts."""
        return "blocks" if self.lives == "together" else "pairs of lives"

    @model_validator(mode="after")
    def _something_is_left_to_the_blocks(self) -> RatioRule:
        if self.allowance_alpha >= self.alpha:
            raise ValueError("the allowance for lives takes all of alpha")
        return self

    @property
    def cap(self) -> int:
        """The most blocks."""
        return self.blocks

    def state(self, loads: Sequence[MeasuredLoad]) -> State:
        """What the loads so far decide."""
        return self.finding(loads).state

    def wants_more(self, loads: Sequence[MeasuredLoad]) -> bool:
        """Whether another block could decide it: open, below the cap, and trusted."""
        found = self.finding(loads)
        return found.state == "open" and found.n < self.blocks

    def finding(self, loads: Sequence[MeasuredLoad]) -> SpeedFinding:
        """Judge the blocks, in the order of measuring.

        Raises:
            ValueError: a block has not one load of each side.
        """
        pairs = paired(loads)
        refused = self._distrusted(loads, pairs)
        if refused or not pairs:
            return SpeedFinding(
                "refused" if refused else "open", 0, None, None, None, None, 1.0, (), refused
            )
        return self.finding_of(log_ratios(pairs, self.lives))

    def finding_of(self, values: Sequence[float]) -> SpeedFinding:
        """Judge ln(candidate / baseline) of each block, or pair of lives: at least one."""
        import numpy as np

        logs = np.asarray(values, dtype=float)
        passing, failing = self.log_evidence(logs)
        level = self.alpha - self.allowance_alpha
        lower = symmetry.lower_bound(logs, level) - self.allowance
        upper = symmetry.upper_bound(logs, level) + self.allowance
        state, at = first_crossing(passing, failing, level)
        # The hypothesis is 'at most the minimum': all such ratios must be rejected, not only it.
        if (state == "pass" and lower <= math.log(self.minimum)) or (
            state == "fail" and upper >= math.log(self.minimum)
        ):
            state, at = "open", None
        means = np.cumsum(logs) / np.arange(1, logs.size + 1)
        return SpeedFinding(
            state=state,
            n=int(logs.size),
            decided_at=at,
            estimate=_ratio(float(means[-1])),
            lower=_ratio(lower),
            upper=_ratio(upper),
            p_value=min(1.0, math.exp(-float(passing[-1])) + self.allowance_alpha),
            trail=trail_of(np.exp(means), passing, failing),
        )

    def log_evidence(self, logs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """For a ratio above the minimum, and for one below: [..., n] each, like `logs`."""
        threshold = math.log(self.minimum)
        passing, _ = symmetry.log_evidence(logs - (threshold + self.allowance))
        _, failing = symmetry.log_evidence(logs - (threshold - self.allowance))
        return passing, failing

    def _distrusted(
        self, loads: Sequence[MeasuredLoad], pairs: Sequence[tuple[MeasuredLoad, MeasuredLoad]]
    ) -> tuple[Distrust, ...]:
        return (
            *failures(loads),
            *distrusted(loads, declared=self.hit_rate, judged_s=None),
            *(cause for pair in pairs for cause in unlike(*pair)),
        )


def paired(loads: Sequence[MeasuredLoad]) -> list[tuple[MeasuredLoad, MeasuredLoad]]:
    """Baseline and candidate of each block, in the order of measuring.

    Raises:
        ValueError: a block has not one load of each side.
    """
    blocks: dict[int, dict[str, MeasuredLoad]] = {}
    for load in loads:
        sides = blocks.setdefault(load.block, {})
        if load.side in sides:
            raise ValueError(f"block {load.block} has two loads of the {load.side}")
        sides[load.side] = load
    for number, sides in blocks.items():
        if len(sides) != 2:
            raise ValueError(f"block {number} has the {next(iter(sides))} alone")
    return [(sides["baseline"], sides["candidate"]) for sides in blocks.values()]


def log_ratios(
    pairs: Sequence[tuple[MeasuredLoad, MeasuredLoad]], lives: Literal["together", "alternate"]
) -> list[float]:
    """ln(candidate / baseline) of each block; of lives that alternate, the mean of each pair's.

    Raises:
        NoSteadyPartError: a load has no steady part.
    """
    values: dict[tuple[int, ...], list[float]] = {}
    for number, (baseline, candidate) in enumerate(pairs):
        unit = (number,) if lives == "together" else (baseline.life, candidate.life)
        ratio = output_rate(candidate) / output_rate(baseline)
        values.setdefault(unit, []).append(math.log(ratio))
    return [sum(each) / len(each) for each in values.values()]


def allowance_for(spread: float, lives: int, alpha: float) -> float:
    """How far ln(ratio) of two lives of equal servers may be from 0: exceeded with chance alpha.

    sqrt(2) times the spread, times Student's quantile, which is 2 for many lives and alpha 2.5 %.

    Args:
        spread: standard deviation of ln(output tokens/s) between lives of one server.
        lives: how many it was estimated from, at least 2.
        alpha: one-sided.

    Raises:
        ValueError: there are fewer lives.
    """
    from scipy.special import stdtrit

    if lives < 2:
        raise ValueError(f"no spread is known from {lives} lives of a server")
    return math.sqrt(2) * spread * float(stdtrit(lives - 1, 1 - alpha))


def first_crossing(
    passing: FloatArray, failing: FloatArray, alpha: float
) -> tuple[State, int | None]:
    """Which evidence reaches 1 / alpha first, and at which value; fail where both do at once."""
    needed = -math.log(alpha)
    passed, failed = passing >= needed, failing >= needed
    pass_at = int(passed.argmax()) + 1 if passed.any() else None
    fail_at = int(failed.argmax()) + 1 if failed.any() else None
    if pass_at is not None and (fail_at is None or pass_at < fail_at):
        return "pass", pass_at
    return ("open", None) if fail_at is None else ("fail", fail_at)


def trail_of(
    estimates: FloatArray, passing: FloatArray, failing: FloatArray
) -> tuple[TrailPoint, ...]:
    """The evidence after each value, as powers of ten."""
    ten = math.log(10)
    return tuple(
        TrailPoint(
            n=number,
            mean=float(mean),
            log10_e_pass=float(up) / ten,
            log10_e_fail=float(down) / ten,
        )
        for number, (mean, up, down) in enumerate(
            zip(estimates, passing, failing, strict=True), start=1
        )
    )


def _ratio(log: float) -> float | None:
    return math.exp(log) if math.isfinite(log) else None
