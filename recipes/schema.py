"""Recipes and serving profiles."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from recipes.accelerator import NamedAccelerator
from recipes.config_model import ConfigModel, Name
from recipes.engine_arguments import (
    EXPERT_PARALLEL,
    check_arguments,
    check_counts,
    check_variables,
    memory_share,
)
from recipes.engines import DEFAULT, find_engine
from recipes.engines.engine import KV_DTYPE
from recipes.quantization import AnyQuantization, Calibration
from recipes.quantizers.preset import EightBits
from recipes.speculative import SpeculativeConfig, Word
from recipes.workload import AnyWorkload

Family = Literal["fp8", "int8", "int4", "fp4"]
FAMILIES: tuple[Family, ...] = get_args(Family)


class Recipe(ConfigModel):
    """Instructions to make one variant of a checkpoint."""

    name: Name
    summary: str = Field(description="one line for `prepare show`")
    family: Literal["baseline"] | Family = Field(description="which margins a policy applies")
    quantization: AnyQuantization
    minimum_compute_capability: float | None = Field(
        None,
        ge=1,
        le=100,
        description="minimum of an NVIDIA GPU with native kernels, such as 8.9 for FP8",
    )
    maximum_compute_capability: float | None = Field(
        None,
        ge=1,
        le=100,
        description="maximum of an NVIDIA GPU with kernels, such as 9.0 for INT8 activations",
    )
    full_compute_capability: float | None = Field(
        None,
        ge=1,
        le=100,
        description="minimum of a GPU that computes the recipe's format; older ones multiply with "
        "16-bit activations, such as 10.0 for NVFP4",
    )
    architectures: list[str] = Field(
        default=[],
        description="supported ones: names or shell patterns of config.json's key "
        "'architectures'; all when empty",
    )
    unsupported_architectures: list[str] = Field(
        default=[], description="exceptions from 'architectures'"
    )
    suggested_recipe: str | None = Field(
        None, description="recipe that an error suggests for unsupported models"
    )
    extends: str | None = Field(
        None,
        exclude=True,
        description="name or path of a recipe that this one changes; merged in when it is loaded",
    )

    def lacks_kernels_on(self, compute_capability: float) -> str:
        """Return why a GPU cannot serve such weights."""
        least = self.minimum_compute_capability
        most = self.maximum_compute_capability
        if least is not None and compute_capability < least:
            return f"needs a GPU of compute capability {least}"
        if most is not None and compute_capability > most:
            return f"has kernels up to compute capability {most} only"
        return ""

    def remark_on(self, compute_capability: float) -> str:
        """Return how a GPU computes otherwise than stated."""
        full = self.full_compute_capability
        if full is None or compute_capability >= full:
            return ""
        return (
            f"'{self.name}': a GPU below compute capability {full} multiplies its weights with "
            "16-bit activations, so the verdict does not cover newer GPUs"
        )

    def suits(self, architecture: str) -> bool:
        if any(fnmatchcase(architecture, word) for word in self.unsupported_architectures):
            return False
        return not self.architectures or any(
            fnmatchcase(architecture, word) for word in self.architectures
        )


class CalibrationLimit(ConfigModel):
    """Limits of calibration on a kind of machine; a run reports when they apply."""

    samples: int = Field(ge=1, le=1_000_000)
    max_tokens: int = Field(ge=16, le=1_000_000)
    batch_size: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="blocks that go through a layer together, in the recipe's place",
    )
    fallback: bool = Field(
        False,
        description="calibrate with the recipe's `fallback`, if it has one, without the Hub",
    )
    grid_points: int | None = Field(
        None, ge=3, le=1_000, description="candidate scales that AWQ tries per layer"
    )

    def limit(self, calibration: Calibration) -> Calibration:
        """Return the calibration within these limits."""
        return calibration.model_copy(
            update={
                "samples": min(calibration.samples, self.samples),
                "max_tokens": min(calibration.max_tokens, self.max_tokens),
                "batch_size": self.batch_size or calibration.batch_size,
            }
        )


EngineValue = bool | int | float | str | list[str]
EngineName = Annotated[str, AfterValidator(lambda name: find_engine(name).name)]
CpuFeature = Literal["avx2", "avx512f", "avx512_bf16", "amx"]


class CpuOverride(ConfigModel):
    """Changes of a profile on a CPU that lacks a feature; reports show them if they apply."""

    if_missing: CpuFeature = Field(description="CPU feature whose absence applies the override")
    reason: str = Field(description="reason, shown next to every verdict")
    kv_cache_dtype: Word | None = Field(None, description="replaces the profile's")
    engine_arguments: dict[str, EngineValue] = Field(
        default={}, description="merged over the profile's"
    )
    environment: dict[str, str] = Field(default={}, description="merged over the profile's")
    quantize_dtype: Literal["float32"] | None = Field(
        None, description="dtype of calibration; the stored weights do not change"
    )


# The wait of `prepare serve`: loading time does not affect verdicts, so these record it.
READY_TIMEOUT_SECONDS = 1800.0


DEFAULT_CONCURRENCY = 64
"""Requests in flight, of profiles that name no other and of users' endpoints."""


class ServingProfile(ConfigModel):
    """Engine arguments, workloads and limits of a kind of machine."""

    name: Name
    summary: str
    extends: str | None = Field(
        None,
        exclude=True,
        description="name or path of a profile that this one changes; merged in when it is loaded",
    )
    accelerator: NamedAccelerator
    gpu_name_contains: list[str] = Field(
        default=[], description="words of the GPU names that `--profile auto` uses the profile for"
    )
    engine: EngineName = Field(DEFAULT, description="serving engine")
    kv_cache_dtype: Word = Field("fp8", description="for every variant")
    baseline_kv_cache_dtype: Word = Field("auto", description="for the baseline")
    engine_arguments: dict[str, EngineValue] = Field(
        default={},
        description="engine options without leading dashes; true is a bare flag, a list is "
        "several words",
    )
    environment: dict[str, str] = Field(default={}, description="variables of the server process")
    variant_arguments: dict[str, EngineValue] = Field(
        default={}, description="engine options of every variant, over engine_arguments"
    )
    speculative: SpeculativeConfig | None = Field(
        None, description="speculative decoding of every variant; the baseline has none"
    )
    ready_timeout_seconds: float = Field(900, ge=1, le=86_400)
    concurrency: int = Field(
        DEFAULT_CONCURRENCY,
        ge=1,
        le=10_000,
        description="requests in flight while suites are asked, but for those that name their own",
    )

    calibration_limit: CalibrationLimit | None = None
    workloads: dict[Name, AnyWorkload] = Field(
        default={}, description="by name; a policy's `speed` prefers these to the built-in ones"
    )
    gives_back: EightBits = Field(
        "FP8_DYNAMIC",
        description="format of the modules that a recipe such as awq-w4a16+5 gives back; W8A16 "
        "(8-bit integers) for GPUs without FP8",
    )
    starts: Literal["fresh", "once"] = Field(
        "fresh",
        description="servers whose speed is measured. fresh: a new start for each load, one "
        "server at a time, so that a verdict is about starts in general; once: the servers of all "
        "arms stay up, and a verdict is about these starts",
    )
    speed_note: str | None = Field(
        None, description="note next to every speed gate that is measured with this profile"
    )
    kv_cache_note: str | None = Field(
        None, description="effect of the KV cache's type on variants; shown in plan and verdict"
    )

    cpu_overrides: dict[Name, CpuOverride] = Field(
        default={}, description="by name; only for CPU profiles. Reports show those that apply"
    )

    @model_validator(mode="after")
    def _the_engine_runs_there(self) -> Self:
        served = find_engine(self.engine).accelerators
        if self.accelerator not in served:
            raise ValueError(f"the engine '{self.engine}' needs accelerator: {' or '.join(served)}")
        share = memory_share(self.engine_arguments)
        if self.starts == "once" and self.accelerator == "cuda" and share > 0.5:
            raise ValueError(
                "with 'starts: once' two servers share each GPU, and this profile gives one of "
                f"them {share:g} of its memory: set 'gpu-memory-utilization' to at most 0.5"
            )
        return self

    # Not a key: it depends on the machine.
    _in_effect: dict[str, CpuOverride] = PrivateAttr(default_factory=dict)

    @property
    def in_effect(self) -> dict[str, CpuOverride]:
        """Overrides that changed this profile."""
        return dict(self._in_effect)

    @property
    def gpus_a_copy(self) -> int | None:
        """GPUs of one replica; None where a run chooses."""
        value = self.engine_arguments.get("tensor-parallel-size")
        return value if isinstance(value, int) else None

    def spread_over(self, gpus: int, *, expert_parallel: bool) -> ServingProfile:
        """Return the profile with one replica on so many GPUs."""
        spread: dict[str, EngineValue] = {"tensor-parallel-size": gpus}
        if expert_parallel:
            spread[EXPERT_PARALLEL] = True
        return self.model_copy(update={"engine_arguments": {**self.engine_arguments, **spread}})

    def spread_as(self, other: ServingProfile) -> ServingProfile:
        """Return the profile on as many GPUs as the other's."""
        experts = bool(other.engine_arguments.get(EXPERT_PARALLEL))
        return self.spread_over(other.gpus_a_copy or 1, expert_parallel=experts)

    def fit_to(self, features: Collection[str]) -> ServingProfile:
        """Return the profile for a CPU with only these features."""
        lacking = {
            n: override
            for n, override in self.cpu_overrides.items()
            if override.if_missing not in features
        }
        return self.apply_cpu_overrides(lacking)

    def apply_cpu_overrides(self, cpu_overrides: Mapping[str, CpuOverride]) -> ServingProfile:
        """Return the profile with these overrides."""
        arguments = dict(self.engine_arguments)
        environment = dict(self.environment)
        cache = self.kv_cache_dtype
        for override in cpu_overrides.values():
            arguments |= override.engine_arguments
            environment |= override.environment
            cache = override.kv_cache_dtype or cache
        changed = self.model_copy(
            update={
                "engine_arguments": arguments,
                "environment": environment,
                "kv_cache_dtype": cache,
            }
        )
        changed._in_effect = dict(cpu_overrides)
        return changed

    def serve_with(self, arguments: Mapping[str, EngineValue]) -> ServingProfile:
        """Return the profile with these arguments for variants."""
        others = {name: value for name, value in arguments.items() if name != KV_DTYPE}
        return self.model_copy(
            update={
                "variant_arguments": {**self.variant_arguments, **others},
                "kv_cache_dtype": arguments.get(KV_DTYPE, self.kv_cache_dtype),
            }
        )

    def as_applied(self, draft: str | None = None) -> ServingProfile:
        """Return the profile for a verdict, without machine-specific values.

        `draft` is the draft model's digest.
        """
        speculative = self.speculative
        if speculative is not None:
            speculative = speculative.model_copy(update={"model": draft})
        return self.model_copy(
            update={
                "cpu_overrides": self.in_effect,
                "speculative": speculative,
                "workloads": {},
                "gives_back": "FP8_DYNAMIC",
                "ready_timeout_seconds": READY_TIMEOUT_SECONDS,
            }
        )

    @property
    def quantizes_in_float32(self) -> bool:
        return any(override.quantize_dtype is not None for override in self._in_effect.values())

    @field_validator(
        *("engine_arguments", "variant_arguments", "environment", "speculative", "cpu_overrides")
    )
    @classmethod
    def _the_engine_takes_it(cls, value: Any, profile: ValidationInfo) -> Any:
        if not {"accelerator", "engine"} <= profile.data.keys():  # an invalid one is missing
            return value
        engine = profile.data["engine"]
        accelerator = profile.data["accelerator"]
        arguments = []
        variables = []
        if profile.field_name == "cpu_overrides":
            if value and accelerator != "cpu":
                raise ValueError("'cpu_overrides' are for a profile with accelerator: cpu")
            arguments = [given.engine_arguments for given in value.values()]
            variables = [given.environment for given in value.values()]
        elif profile.field_name == "environment":
            variables = [value]
        elif profile.field_name != "speculative":
            arguments = [value]
        elif value is not None:
            value.check(accelerator, engine)
        for given in arguments:
            check_counts(given)
            check_arguments(given, engine)
        for given in variables:
            check_variables(given, engine)
        return value
