"""Speed gates of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from recipes.accelerator import Accelerator, NamedAccelerator
from recipes.config_model import ConfigModel, Name, Tier
from recipes.workload import AnyWorkload

SpeedGateKind = Literal["ratio", "slo"]
ALSO_BLOCKS = 3
# fmt: off
LimitName = Literal[
    "ttft_ms_p50", "ttft_ms_p90", "ttft_ms_p95", "ttft_ms_p99",
    "tpot_ms_p50", "tpot_ms_p90", "tpot_ms_p95", "tpot_ms_p99",
    "latency_ms_p50", "latency_ms_p90", "latency_ms_p95", "latency_ms_p99",
    "errors",
]
# fmt: on


class ThroughputRatioGate(ConfigModel):
    """Minimum ratio of output tokens/s, variant over baseline."""

    min_ratio: dict[NamedAccelerator, Annotated[float, Field(ge=1e-3, le=1_000)]] = Field(
        default_factory=lambda: dict.fromkeys(Accelerator, 0.95),
        min_length=1,
        validate_default=True,
        description="one number, or one by accelerator, because CPUs emulate FP8; 0.95 for both "
        "when absent. An accelerator without a number has no gate. `prepare gate` takes "
        "the number of cuda",
    )
    workloads: list[Name] = Field(min_length=1, max_length=20, description="each is one gate")
    blocks: int = Field(
        7,
        ge=3,
        le=100,
        description="number that decides; a block has a server start and a load of each side, in "
        "balanced order (with `starts: once` a load of each side)",
    )
    also: list[Name] = Field(
        [],
        max_length=5,
        description="workloads that are measured in the same server starts, on GPUs: other loads "
        "have other ratios. Each is a supporting gate of three blocks",
    )
    tier: Tier = "critical"

    @property
    def supporting(self) -> ThroughputRatioGate:
        """The gate of `also`."""
        return self.model_copy(update={"tier": "supporting", "blocks": ALSO_BLOCKS})

    @field_validator("min_ratio", mode="before")
    @classmethod
    def _a_number_is_for_all(cls, value: Any) -> Any:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return {"cpu": value, "cuda": value} if is_number else value

    @model_validator(mode="after")
    def _each_is_named_once(self) -> ThroughputRatioGate:
        named = [*self.workloads, *self.also]
        if len(set(named)) < len(named):
            raise ValueError("a workload is named twice")
        return self

    def is_about(self, accelerator: Accelerator | None) -> bool:
        """Return whether it applies; None is an unknown machine, taken for one with GPUs."""
        return (accelerator or Accelerator.CUDA) in self.min_ratio

    def minimum_on(self, accelerator: Accelerator | None) -> float:
        """Return the smallest acceptable ratio; None is an unknown machine, as with GPUs.

        ValueError without a minimum.
        """
        if not self.is_about(accelerator):
            raise ValueError(f"no minimum for {accelerator or 'cuda, which endpoints count as'}")
        return self.min_ratio[accelerator or Accelerator.CUDA]


class SloGate(ConfigModel):
    """Latency limits that the typical server start must meet."""

    workload: Name
    rate: float | None = Field(
        None,
        ge=1e-3,
        le=1e5,
        description="requests a second, as a Poisson process; the workload's arrivals when absent",
    )
    limits: dict[LimitName, Annotated[float, Field(ge=0, le=1e7)]] = Field(
        description="the most that a load may show, all together: percentiles of time to first "
        "token, of time per further token and of the whole answer in milliseconds, and failed "
        "requests (errors: 0 when absent)"
    )
    starts: int = Field(
        6,
        ge=3,
        le=100,
        description="number that decides: server starts with one load each (loads with "
        "`starts: once`). If more than one of six misses a limit, nothing passes",
    )
    tier: Tier = "critical"

    @model_validator(mode="after")
    def _limits_can_be_kept(self) -> SloGate:
        if (errors := self.limits.get("errors", 0.0)) != int(errors):
            raise ValueError(f"limits.errors must be an integer, not {errors:g}")
        times = {name: limit for name, limit in self.limits.items() if name != "errors"}
        if not times:
            raise ValueError("limits has no latency: add one such as ttft_ms_p95")
        if zeros := [name for name, limit in times.items() if limit <= 0]:
            raise ValueError(f"limits.{zeros[0]} is a time and must be above 0")
        return self


class SpeedPolicy(ConfigModel):
    """Speed gates of a policy, and its workloads."""

    ratio: ThroughputRatioGate | None = None
    slo: list[SloGate] = Field(default=[], max_length=20)
    workloads: dict[Name, AnyWorkload] = Field(
        default={}, description="by name; used before the profile's and the built-in ones"
    )
    quiet: Literal["node"] | None = Field(
        default=None,
        description="node: a measurement on GPUs has the whole node alone, not its GPUs only. "
        "Without GPUs it always has",
    )

    @model_validator(mode="after")
    def _has_a_gate(self) -> SpeedPolicy:
        if self.ratio is None and not self.slo:
            raise ValueError("it has no gate: add 'ratio' or 'slo'")
        return self

    @property
    def gates(self) -> tuple[SpeedGate, ...]:
        """All gates: the ratios, then the limits."""
        names = self.ratio.workloads if self.ratio is not None else []
        ratios = [
            SpeedGate(f"ratio.{workload}", workload, self.ratio) for workload in names if self.ratio
        ]
        if self.ratio is not None:
            first = ratios[0].name
            gate = self.ratio.supporting
            ratios += [
                SpeedGate(f"ratio.{workload}", workload, gate, first)
                for workload in self.ratio.also
            ]
        limits = [
            SpeedGate(f"slo.{n}", limits_gate.workload, limits_gate)
            for n, limits_gate in enumerate(self.slo)
        ]
        return (*ratios, *limits)

    def gates_on(self, accelerator: Accelerator | None) -> tuple[SpeedGate, ...]:
        """Return the gates that apply to the accelerator, None for unknown machines."""
        return tuple(
            speed_gate
            for speed_gate in self.gates
            if not isinstance(speed_gate.gate, ThroughputRatioGate)
            or (
                speed_gate.gate.is_about(accelerator)
                and (not speed_gate.main or accelerator == "cuda")
            )
        )

    @property
    def tiers(self) -> dict[str, Tier]:
        """Tier by name, such as `ratio.chat` or `slo.0`."""
        return {speed_gate.name: speed_gate.tier for speed_gate in self.gates}


@dataclass(frozen=True)
class SpeedGate:
    """One speed gate: a ratio on one workload, or limits."""

    name: str
    workload: str
    gate: ThroughputRatioGate | SloGate
    main: str = ""
    """The gate whose server starts it shares; '' if it has separate ones."""

    @property
    def kind(self) -> SpeedGateKind:
        return "ratio" if isinstance(self.gate, ThroughputRatioGate) else "slo"

    @property
    def tier(self) -> Tier:
        return self.gate.tier

    @property
    def at(self) -> str:
        """Rate as text, or '' for the workload's arrivals."""
        rate = self.gate.rate if isinstance(self.gate, SloGate) else None
        return f"{rate:g} requests/s" if rate is not None else ""
