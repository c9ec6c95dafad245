"""What a gate writes down about one variant beside the baseline."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Verdict = Literal["pass", "fail", "undecided"]


class Record(BaseModel):
    """Base of everything that is written down: frozen, and strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GateReport(Record):
    """One suite's comparison of a variant with the baseline."""

    suite: str = Field(description="name of the suite in the policy")
    metric: str = Field(description="what the mean is of, such as acc or rougeL")
    n: int = Field(description="questions answered by both")
    baseline: float = Field(description="mean score of the baseline, 0 to 1")
    candidate: float = Field(description="mean score of the variant, 0 to 1")
    difference: float = Field(description="candidate minus baseline, paired by question")
    bound: float = Field(description="lower one-sided confidence bound of the difference")
    upper_bound: float = Field(description="upper one-sided confidence bound of the difference")
    margin: float = Field(description="largest acceptable drop")
    alpha: float = Field(description="error rate of each bound")
    method: str = Field(description="where the bounds come from")
    flips: int = Field(description="questions whose score changed")
    verdict: Verdict
    reason: str = Field(description="the verdict in words")
    suspicious: bool = Field(False, description="better than the baseline by more than the margin")


class ThroughputReport(Record):
    """The load test of a variant beside the baseline's."""

    output_tokens_per_s: float = Field(description="of the variant")
    baseline_output_tokens_per_s: float
    ratio: float = Field(description="variant over baseline")
    minimum_ratio: float = Field(description="from the policy")
    ttft_ms_p50: float = Field(description="time to first token, median, of the variant")
    tpot_ms_p50: float = Field(description="time per output token after the first, median")
    itl_ms_p50: float = Field(description="inter-token latency, median")
    requests: int = Field(description="requests sent to the variant")
    failed_requests: int = Field(description="those without a whole answer")
    verdict: Verdict
    reason: str
    note: str | None = Field(None, description="what the profile says about its ratios")
