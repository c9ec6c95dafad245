"""What a policy requires of speed: ratios to the baseline, and limits on latencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from recipes.config_model import ConfigModel, Name, Tier
from recipes.workload import AnyWorkload

Accelerator = Literal["cpu", "cuda"]
ClaimKind = Literal["ratio", "slo"]
LimitName = Literal[
    "ttft_ms_p50",
    "ttft_ms_p90",
    "ttft_ms_p95",
    "ttft_ms_p99",
    "tpot_ms_p50",
    "tpot_ms_p90",
    "tpot_ms_p95",
    "tpot_ms_p99",
    "latency_ms_p50",
    "latency_ms_p90",
    "latency_ms_p95",
    "latency_ms_p99",
    "errors",
]


class ThroughputRatioGate(ConfigModel):
    """Output tokens a second of the variant over the baseline's, block by block."""

    min_ratio: dict[Accelerator, Annotated[float, Field(ge=1e-3, le=1_000)]] = Field(
        min_length=1,
        description="of the typical block: one number, or by accelerator, since FP8 is emulated on "
        "CPUs; nothing is claimed on one that is not named",
    )
    workloads: list[Name] = Field(min_length=1, max_length=20, description="each is one gate")
    blocks: int = Field(
        20,
        ge=10,
        le=1_000,
        description="at most; a block is both sides, one after the other, in an order drawn by "
        "chance",
    )
    tier: Tier = "critical"

    @field_validator("min_ratio", mode="before")
    @classmethod
    def _a_number_is_for_all(cls, value: Any) -> Any:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return {"cpu": value, "cuda": value} if is_number else value

    @field_validator("workloads")
    @classmethod
    def _each_is_named_once(cls, workloads: list[str]) -> list[str]:
        for name in workloads:
            if workloads.count(name) > 1:
                raise ValueError(f"'{name}' is named twice")
        return workloads

    def is_about(self, accelerator: Accelerator | None) -> bool:
        """Whether it has a minimum there; None: of endpoints whose machine nobody knows."""
        if accelerator is None:
            return len(self.min_ratio) > 1 and len(set(self.min_ratio.values())) == 1
        return accelerator in self.min_ratio

    def minimum_on(self, accelerator: Accelerator | None) -> float:
        """The smallest acceptable ratio; None: of endpoints whose machine nobody knows.

        Raises:
            ValueError: it has none for that accelerator, or several where it is not known.
        """
        if not self.is_about(accelerator):
            raise ValueError(f"no one minimum for {accelerator or 'endpoints of unknown machines'}")
        return next(v for k, v in self.min_ratio.items() if accelerator in (k, None))


class SloGate(ConfigModel):
    """Limits that a served model keeps together, round by round."""

    workload: Name
    rate: float | None = Field(
        None,
        ge=1e-3,
        le=1e5,
        description="requests a second, as a Poisson process; the workload's own arrivals when "
        "absent",
    )
    limits: dict[LimitName, Annotated[float, Field(ge=0, le=1e7)]] = Field(
        default={},
        description="the most that a round may show, all together: percentiles of time to first "
        "token, of time per further token and of the whole answer in milliseconds, and failed "
        "requests (errors: 0 when absent). With `compare: baseline`, latencies over the "
        "baseline's of the same round",
    )
    min_acceptance_length: float | None = Field(
        None,
        gt=1,
        le=65,
        description="of speculative decoding: tokens that a step with drafts gives in a round, the "
        "model's own among them (vLLM's mean acceptance length)",
    )
    slo_attainment: float = Field(
        0.8,
        ge=0.05,
        le=0.99,
        description="the claim: at least this share of all such rounds keeps the limits. With 0.5 "
        "and a P95, 10 to 14 % of all requests may be over the limit",
    )
    compare: Literal["absolute", "baseline"] = Field(
        "absolute",
        description="baseline: the same round is measured on both sides, and 1.1 of a limit is at "
        "most 1.1 times the baseline's",
    )
    rounds: int = Field(40, ge=10, le=10_000, description="at most")
    tier: Tier = "critical"

    @model_validator(mode="after")
    def _limits_can_be_kept(self) -> SloGate:
        check_limits(self.limits)
        if self.min_acceptance_length is None:
            check_latency(self.limits)
        return self


def check_limits(limits: Mapping[LimitName, float]) -> None:
    """Raises ValueError where one of them is none that a server could keep."""
    for name, limit in limits.items():
        if name == "errors":
            if limit != int(limit):
                raise ValueError(f"limits.errors is a number of requests, not {limit:g}")
        elif limit <= 0:
            raise ValueError(f"limits.{name} is a time, and above 0")


def check_latency(limits: Mapping[LimitName, float]) -> None:
    """Raises ValueError where none of them is about a time."""
    if set(limits) <= {"errors"}:
        raise ValueError("limits has no latency: add one such as ttft_ms_p95")


class SpeedPolicy(ConfigModel):
    """How fast a variant must be: claims of which each is a gate."""

    ratio: ThroughputRatioGate | None = None
    slo: list[SloGate] = Field(default=[], max_length=20)
    workloads: dict[Name, AnyWorkload] = Field(
        default={}, description="the policy's own, by name; before the profile's and those carried"
    )

    @model_validator(mode="after")
    def _something_is_claimed(self) -> SpeedPolicy:
        if self.ratio is None and not self.slo:
            raise ValueError("it claims nothing: give 'ratio' or 'slo'")
        return self

    @property
    def claims(self) -> tuple[SpeedGate, ...]:
        """Each is one gate: the ratios, then the limits."""
        ratios = [
            SpeedGate(f"ratio.{name}", name, self.ratio)
            for name in (self.ratio.workloads if self.ratio else [])
            if self.ratio
        ]
        limits = [
            SpeedGate(f"slo.{number}", each.workload, each) for number, each in enumerate(self.slo)
        ]
        return (*ratios, *limits)

    def claims_on(self, accelerator: Accelerator | None) -> tuple[SpeedGate, ...]:
        """The claims that it makes there.

        Args:
            accelerator: a ratio whose minimum does not name it claims nothing there; None of
                endpoints whose machine nobody knows, of which only one minimum for all does.
        """
        return tuple(
            claim
            for claim in self.claims
            if not isinstance(claim.gate, ThroughputRatioGate) or claim.gate.is_about(accelerator)
        )

    @property
    def tiers(self) -> dict[str, Tier]:
        """Each gate by its name: `ratio.chat`, `slo.0`."""
        return {claim.name: claim.tier for claim in self.claims}


@dataclass(frozen=True)
class SpeedGate:
    """One gate on speed: a ratio on one workload, or limits."""

    name: str
    workload: str
    gate: ThroughputRatioGate | SloGate

    @property
    def kind(self) -> ClaimKind:
        """Which rule decides it."""
        return "ratio" if isinstance(self.gate, ThroughputRatioGate) else "slo"

    @property
    def tier(self) -> Tier:
        """Whether it may keep a variant out."""
        return self.gate.tier

    @property
    def at(self) -> str:
        """When requests come, in words; '' where the workload says it."""
        rate = self.gate.rate if isinstance(self.gate, SloGate) else None
        return f"{rate:g} requests/s" if rate is not None else ""
