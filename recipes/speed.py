"""What a policy says about speed: ratios to the baseline, limits of latencies, and goodput."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from recipes.described import Described, Name, Tier
from recipes.workload import AnyWorkload

Accelerator = Literal["cpu", "cuda"]
ClaimKind = Literal["ratio", "slo", "goodput"]
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


class RatioGate(Described):
    """Output tokens a second of the variant over the baseline's, block by block."""

    minimum: dict[Accelerator, Annotated[float, Field(ge=1e-3, le=1_000)]] = Field(
        min_length=1,
        description="of the typical block: one number, or by accelerator, since FP8 is emulated on "
        "CPUs; nothing is claimed on one that is not named",
    )
    workloads: list[Name] = Field(min_length=1, max_length=20, description="each is one gate")
    blocks: int = Field(
        20,
        ge=5,
        le=1_000,
        description="at most; a block is both sides, one after the other, in an order drawn by "
        "chance",
    )
    tier: Tier = "critical"

    @field_validator("minimum", mode="before")
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
            return len(self.minimum) > 1 and len(set(self.minimum.values())) == 1
        return accelerator in self.minimum

    def minimum_on(self, accelerator: Accelerator | None) -> float:
        """The smallest acceptable ratio; None: of endpoints whose machine nobody knows.

        Raises:
            ValueError: it has none for that accelerator, or several where it is not known.
        """
        if not self.is_about(accelerator):
            raise ValueError(f"no one minimum for {accelerator or 'endpoints of unknown machines'}")
        return next(v for k, v in self.minimum.items() if accelerator in (k, None))

    def rule(
        self, accelerator: Accelerator | None, alpha: float, hit_rate: float | None
    ) -> dict[str, Any]:
        """What decides it, as plain data.

        Args:
            accelerator: that both sides run on; None where nobody knows.
            alpha: error rate at which measuring stops.
            hit_rate: that the workload declares; None where it declares none.

        Raises:
            ValueError: as `minimum_on`.
        """
        return {
            "minimum": self.minimum_on(accelerator),
            "alpha": alpha,
            "blocks": self.blocks,
            "hit_rate": hit_rate,
        }


class SloGate(Described):
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
        description="the most that a round may show, all at once: percentiles of time to first "
        "token, of time per further token and of the whole answer in milliseconds, and failed "
        "requests (errors: 0 when absent). With `compare: baseline`, latencies over the "
        "baseline's of the same round",
    )
    acceptance_at_least: float | None = Field(
        None,
        gt=1,
        le=65,
        description="of speculative decoding: tokens that a step with drafts gives in a round, the "
        "model's own among them (vLLM's mean acceptance length)",
    )
    share_of_rounds: float = Field(
        0.5,
        ge=0.05,
        le=0.99,
        description="the claim: at least this share of all such rounds keeps the limits",
    )
    compare: Literal["absolute", "baseline"] = Field(
        "absolute",
        description="baseline: the same round is measured on both sides, and 1.1 of a limit is at "
        "most 1.1 times the baseline's",
    )
    rounds: int = Field(30, ge=1, le=10_000, description="at most")
    tier: Tier = "critical"

    @model_validator(mode="after")
    def _limits_can_be_kept(self) -> SloGate:
        check_limits(self.limits)
        if self.acceptance_at_least is None:
            check_latency(self.limits)
        return self

    def rule(self, alpha: float, hit_rate: float | None) -> dict[str, Any]:
        """What decides it, as plain data; arguments as of `RatioGate.rule`."""
        return {
            "limits": dict(self.limits),
            "compare": self.compare,
            "share": self.share_of_rounds,
            "alpha": alpha,
            "rounds": self.rounds,
            "hit_rate": hit_rate,
            **({"acceptance": self.acceptance_at_least} if self.acceptance_at_least else {}),
        }


class GoodputGate(Described):
    """The highest rate of requests at which limits are kept, over the baseline's."""

    workload: Name
    at_least_ratio: float = Field(
        ge=0.01,
        le=100,
        description="smallest acceptable goodput of the variant, in goodputs of the baseline",
    )
    limits: dict[LimitName, Annotated[float, Field(ge=0, le=1e7)]] | None = Field(
        None,
        description="as of a claim of `slo`; when absent, those of the one absolute claim of "
        "`slo` on the same workload, with its share_of_rounds",
    )
    share_of_rounds: float | None = Field(
        None,
        ge=0.05,
        le=0.99,
        description="goodput is the highest rate at which at least this share of rounds keeps the "
        "limits; with limits of its own, 0.5 when absent",
    )
    start: float | None = Field(
        None,
        ge=1e-3,
        le=1e5,
        description="requests a second that the search begins with; when absent, the rate of that "
        "claim of `slo`, or of the workload, or 1",
    )
    rounds: int = Field(
        40,
        ge=5,
        le=10_000,
        description="at most, at one pair of rates, beside those of the search; a round is one "
        "load of each side",
    )
    tier: Tier = "critical"

    @model_validator(mode="before")
    @classmethod
    def _a_rate_is_a_limit_at_that_rate(cls, value: Any) -> Any:
        if isinstance(value, dict) and "at_least" in value:
            raise ValueError(
                "'at_least' is no key: so many requests/s are a claim of 'slo' with that 'rate', "
                "which needs no baseline and no search"
            )
        return value

    @model_validator(mode="after")
    def _limits_can_be_kept(self) -> GoodputGate:
        if self.limits is not None:
            check_limits(self.limits)
            check_latency(self.limits)
        return self

    def rule(self, alpha: float, hit_rate: float | None) -> dict[str, Any]:
        """What decides it, as plain data; arguments as of `RatioGate.rule`."""
        return {
            "minimum": self.at_least_ratio,
            "limits": dict(self.limits or {}),
            "share": self.share_of_rounds,
            "alpha": alpha,
            "rounds": self.rounds,
            "hit_rate": hit_rate,
        }


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


class Speed(Described):
    """How fast a variant must be: claims of which each is a gate."""

    ratio: RatioGate | None = None
    slo: list[SloGate] = Field(default=[], max_length=20)
    goodput: GoodputGate | None = None
    workloads: dict[Name, AnyWorkload] = Field(
        default={}, description="the policy's own, by name; before the profile's and those carried"
    )

    @model_validator(mode="after")
    def _something_is_claimed(self) -> Speed:
        if self.ratio is None and not self.slo and self.goodput is None:
            raise ValueError("it claims nothing: give 'ratio', 'slo' or 'goodput'")
        return self

    @model_validator(mode="after")
    def _goodput_has_limits(self) -> Speed:
        if self.goodput is not None and self.goodput.limits is None:
            check_latency(self._slo_of(self.goodput).limits)
        return self

    def _slo_of(self, goodput: GoodputGate) -> SloGate:
        """The claim whose limits are the goodput's, too."""
        those = [each for each in self.slo if each.workload == goodput.workload]
        absolute = [each for each in those if each.compare == "absolute"]
        if len(absolute) != 1:
            raise ValueError(
                f"goodput has no limits, and {len(absolute)} absolute claims of 'slo' are on "
                f"'{goodput.workload}': give goodput.limits"
            )
        return absolute[0]

    @property
    def whole_goodput(self) -> GoodputGate | None:
        """The claim on goodput, with the limits and the start that it takes from one of `slo`."""
        goodput = self.goodput
        if goodput is None:
            return None
        found: dict[str, Any] = {"share_of_rounds": 0.5}
        if goodput.limits is None:
            slo = self._slo_of(goodput)
            found = {
                **{"limits": slo.limits, "share_of_rounds": slo.share_of_rounds},
                "start": slo.rate,
            }
        return goodput.model_copy(
            update={key: value for key, value in found.items() if getattr(goodput, key) is None}
        )

    @property
    def claims(self) -> tuple[SpeedClaim, ...]:
        """Each is one gate: the ratios, then the limits, then the goodput."""
        ratios = [
            SpeedClaim(f"ratio.{name}", name, self.ratio)
            for name in (self.ratio.workloads if self.ratio else [])
            if self.ratio
        ]
        limits = [
            SpeedClaim(f"slo.{number}", each.workload, each) for number, each in enumerate(self.slo)
        ]
        goodput = self.whole_goodput
        rates = [] if goodput is None else [SpeedClaim("goodput", goodput.workload, goodput)]
        return (*ratios, *limits, *rates)

    def claims_on(self, accelerator: Accelerator | None) -> tuple[SpeedClaim, ...]:
        """The claims that it makes there.

        Args:
            accelerator: a ratio whose minimum does not name it claims nothing there; None of
                endpoints whose machine nobody knows, of which only one minimum for all does.
        """
        return tuple(
            claim
            for claim in self.claims
            if not isinstance(claim.gate, RatioGate) or claim.gate.is_about(accelerator)
        )

    @property
    def tiers(self) -> dict[str, Tier]:
        """Of each gate by its name: `ratio.chat`, `slo.0`, `goodput`."""
        return {claim.name: claim.tier for claim in self.claims}


@dataclass(frozen=True)
class SpeedClaim:
    """One gate on speed: a ratio on one workload, limits, or a ratio of goodputs."""

    name: str
    workload: str
    gate: RatioGate | SloGate | GoodputGate

    @property
    def kind(self) -> ClaimKind:
        """Which rule decides it."""
        if isinstance(self.gate, RatioGate):
            return "ratio"
        return "slo" if isinstance(self.gate, SloGate) else "goodput"

    @property
    def tier(self) -> Tier:
        """Whether it may keep a variant out."""
        return self.gate.tier

    @property
    def at(self) -> str:
        """When requests come, in words; '' where the workload says it."""
        rate = self.gate.rate if isinstance(self.gate, SloGate) else None
        return f"{rate:g} requests/s" if rate is not None else ""

    def rule(
        self, accelerator: Accelerator | None, alpha: float, hit_rate: float | None
    ) -> dict[str, Any]:
        """What decides it, as plain data; as `RatioGate.rule`."""
        if isinstance(self.gate, RatioGate):
            return self.gate.rule(accelerator, alpha, hit_rate)
        return self.gate.rule(alpha, hit_rate)
