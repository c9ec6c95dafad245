"""The load test of before there were claims on speed: one load a side, and the bare ratio.

It had no error rate. None is made any more; evidence of then still verifies: its results are
compared as they were, and what came of it stands among the claims, of kind `load_test`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from eval_gates.drafted import Drafted
from eval_gates.records import Tier, Verdict
from eval_gates.speed.load import Side
from eval_gates.speed.report import LoadPoint, SpeedReport
from pipeline.core.record import Record

Rate = Field(gt=0, allow_inf_nan=False)


class LoadTestGate(Record):
    """What a policy's key `throughput` said."""

    minimum_ratio: dict[Literal["cpu", "cuda"], float]
    maximum_failed_requests: int = 0
    tier: Tier = "critical"
    note: str | None = Field(None, description="what the profile said beside the ratio")


class LoadTest(Record, extra="ignore"):
    """What a stage `benchmark` measured of one side, as far as it was judged or is shown."""

    output_tokens_per_s: float = Rate
    engine_version: str
    requests: int
    failed_requests: int
    ttft_ms_p50: float
    tpot_ms_p50: float
    itl_ms_p50: float
    drafted: Drafted | None = None


class LoadTestReport(Record):
    """What a verdict kept of it."""

    tier: Tier = "critical"
    output_tokens_per_s: float = Rate
    baseline_output_tokens_per_s: float = Rate
    ratio: float
    minimum_ratio: float
    ttft_ms_p50: float
    tpot_ms_p50: float
    itl_ms_p50: float
    requests: int
    failed_requests: int
    verdict: Verdict
    reason: str
    note: str | None = None

    def as_claim(self) -> SpeedReport:
        """The same as a claim on speed that has no bounds and proves nothing."""
        itl = f"ITL P50 {self.itl_ms_p50:.1f} ms"
        return SpeedReport(
            gate="throughput",
            kind="load_test",
            workload="",
            claim=f"one load test a side, {self.requests} requests, no error rate; {itl}",
            tier=self.tier,
            unit="load test",
            n=1,
            cap=1,
            decided_at=None,
            estimate=self.ratio,
            lower=None,
            upper=None,
            threshold=self.minimum_ratio,
            alpha=1.0,
            p_value=1.0,
            points=[
                self._point("baseline", self.baseline_output_tokens_per_s),
                self._point("candidate", self.output_tokens_per_s),
            ],
            verdict=self.verdict,
            reason=self.reason,
            note=self.note,
        )

    def _point(self, side: Side, rate: float) -> LoadPoint:
        is_candidate = side == "candidate"
        return LoadPoint(
            side=side,
            block=0,
            place=int(is_candidate),
            life=0,
            output_tokens_per_s=rate,
            requests_per_s=None,
            ttft_ms_p50=self.ttft_ms_p50 if is_candidate else None,
            ttft_ms_p95=None,
            tpot_ms_p50=self.tpot_ms_p50 if is_candidate else None,
            tpot_ms_p95=None,
            failed=self.failed_requests if is_candidate else 0,
            hit_rate=None,
            kept=None,
        )


def judge_load_test(
    baseline: LoadTest, candidate: LoadTest, gate: LoadTestGate, minimum: float
) -> LoadTestReport:
    """Compare two load tests of one workload on one machine, as it was done then."""
    ratio = candidate.output_tokens_per_s / baseline.output_tokens_per_s
    failed, allowed = candidate.failed_requests, gate.maximum_failed_requests
    told = f"{ratio:.3f} of the baseline's output tokens/s"
    verdict: Verdict = "pass" if failed <= allowed and ratio >= minimum else "fail"
    if failed > allowed:
        told = f"{failed} benchmark requests failed, {allowed} are allowed"
    elif verdict == "fail":
        told = f"{told}, {minimum} is asked for"
    else:
        told = f"{told}, at least {minimum}"
    return LoadTestReport(
        tier=gate.tier,
        baseline_output_tokens_per_s=baseline.output_tokens_per_s,
        ratio=ratio,
        minimum_ratio=minimum,
        verdict=verdict,
        reason=told,
        note=gate.note,
        **candidate.model_dump(exclude={"engine_version", "drafted"}),
    )


def read_load_test(verdict: Any) -> Any:
    """A kept verdict as it is read today: its key `throughput` becomes the first of `speed`."""
    if not isinstance(verdict, dict) or "throughput" not in verdict:
        return verdict
    kept = {key: value for key, value in verdict.items() if key != "throughput"}
    if verdict["throughput"] is not None:
        claim = LoadTestReport.model_validate(verdict["throughput"]).as_claim()
        kept["speed"] = [claim, *kept.get("speed", [])]
    return kept
