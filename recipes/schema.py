"""The shape of recipes and serving profiles; unknown keys are errors that name the known ones."""

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

from pipeline.core.hardware import Hardware
from recipes.config_model import ConfigModel, Name
from recipes.engine_arguments import check_arguments, check_counts, check_variables
from recipes.engines import DEFAULT, find_engine
from recipes.quantization import AnyQuantization, Calibration
from recipes.speculative import SpeculativeConfig, Word
from recipes.workload import AnyWorkload

Family = Literal["fp8", "int8", "int4", "fp4"]
FAMILIES: tuple[Family, ...] = get_args(Family)
AcceleratorName = Literal["cpu", "cuda"]


class Recipe(ConfigModel):
    """How to make one variant of a checkpoint."""

    name: Name
    summary: str = Field(description="one line for `prepare recipes list`")
    family: Literal["baseline"] | Family = Field(description="which margins a policy applies")
    quantization: AnyQuantization
    minimum_compute_capability: float | None = Field(
        None,
        ge=1,
        le=100,
        description="of an NVIDIA GPU that runs the kernels natively, such as 8.9 for FP8",
    )
    architectures: list[str] = Field(
        default=[],
        description="those it is for: names or shell patterns, as in config.json's key "
        "'architectures'; all when empty",
    )
    unsupported_architectures: list[str] = Field(
        default=[], description="those it is not for, though 'architectures' has them"
    )
    suggested_recipe: str | None = Field(
        None, description="recipe for the models that this one is not for; its refusal names it"
    )
    cannot_serve_on: dict[Literal["cpu", "cpu-without-amx", "cuda"], str] = Field(
        default={}, description="where vLLM has no kernels for such weights, and why"
    )
    extends: str | None = Field(
        None,
        exclude=True,
        description="name or path of a recipe that this one changes; merged in when it is loaded",
    )

    def suits(self, architecture: str) -> bool:
        """Whether the recipe is for models of this architecture."""
        if any(fnmatchcase(architecture, word) for word in self.unsupported_architectures):
            return False
        return not self.architectures or any(
            fnmatchcase(architecture, word) for word in self.architectures
        )


# --- serving profiles ---------------------------------------------------------------------------


class CalibrationLimit(ConfigModel):
    """The most calibration to do on this machine; reported when it takes effect."""

    samples: int = Field(ge=1, le=1_000_000)
    max_tokens: int = Field(ge=16, le=1_000_000)
    batch_size: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="blocks that go through a layer together, in the recipe's place",
    )

    def limit(self, calibration: Calibration) -> Calibration:
        """The calibration that is done: no more samples and tokens than these."""
        return calibration.model_copy(
            update={
                "samples": min(calibration.samples, self.samples),
                "max_tokens": min(calibration.max_tokens, self.max_tokens),
                "batch_size": self.batch_size or calibration.batch_size,
            }
        )


EngineValue = bool | int | float | str
EngineName = Annotated[str, AfterValidator(lambda name: find_engine(name).name)]
CpuFeature = Literal["avx2", "avx512f", "avx512_bf16", "amx"]


class CpuOverride(ConfigModel):
    """What a profile changes on a CPU that lacks a feature; reported wherever it is in effect."""

    if_missing: CpuFeature = Field(description="it is for CPUs that lack this")
    reason: str = Field(description="why, in words; stands next to every verdict")
    kv_cache_dtype: Word | None = Field(None, description="instead of the profile's")
    engine_arguments: dict[str, EngineValue] = Field(
        default={}, description="over the profile's own"
    )
    environment: dict[str, str] = Field(default={}, description="over the profile's own")
    quantize_dtype: Literal["float32"] | None = Field(
        None, description="dtype of calibration; the stored weights do not change"
    )


class TuningProvenance(ConfigModel):
    """What `prepare tune` has confirmed of a profile that it wrote."""

    min_gain: float = Field(
        ge=1e-3, le=1_000, description="lower bound of output tokens/s over those of the defaults"
    )
    gain: float = Field(ge=1e-3, le=1_000, description="of the typical block; an estimate")
    alpha: float = Field(gt=0, lt=1, description="error rate of the bound")
    workload: Name = Field(description="that it was measured under, by its name")
    engine_defaults: list[str] = Field(
        description="command line of what it was compared with; the engine chose all else itself"
    )
    checkpoint: str = Field(description="digest of the model that was served")
    hardware: Hardware = Field(description="that both were served on")
    run: Name = Field(description="id of the run that measured it")
    evidence: str = Field(description="SHA-256 of every request's timings, in that run's store")
    requires_regate: bool = Field(description="whether an argument changes answers")

    @property
    def words(self) -> str:
        """For people, in one line."""
        return (
            f"tuned for {self.workload}: at least {self.min_gain:.3f} of the defaults' output "
            f"tokens/s (run {self.run})"
        )


# How long loading takes is no part of a verdict; as `prepare serve` waits.
READY_TIMEOUT_SECONDS = 1800.0


class ServingProfile(ConfigModel):
    """An engine's exact arguments, the loads to measure with, the limits of a kind of machine."""

    name: Name
    summary: str
    accelerator: AcceleratorName
    gpu_name_contains: list[str] = Field(
        default=[], description="`--profile auto` takes the profile whose word is in the GPU's name"
    )
    engine: EngineName = Field(DEFAULT, description="that serves, by its name")
    kv_cache_dtype: Word = Field("fp8", description="of every variant")
    baseline_kv_cache_dtype: Word = Field("auto", description="of the baseline")
    engine_arguments: dict[str, EngineValue] = Field(
        default={}, description="the engine's own, without dashes in front; true is a bare flag"
    )
    environment: dict[str, str] = Field(default={}, description="variables of the server process")
    speculative: SpeculativeConfig | None = Field(
        None, description="speculative decoding of every variant; the baseline has none"
    )
    ready_timeout_seconds: float = Field(900, ge=1, le=86_400)

    calibration_limit: CalibrationLimit | None = None
    workloads: dict[Name, AnyWorkload] = Field(
        default={}, description="by name, that a policy's `speed` takes before those carried"
    )
    server_mode: Literal["concurrent", "interleaved"] = Field(
        "interleaved",
        description="how baseline and variant are served while their speeds are measured. "
        "together: both servers run concurrently, which needs memory for both, and a pass is "
        "about one start of each; alternate: one after the other, again and again, each time "
        "started again, so that a pass is about starts in general",
    )
    restart_stddev: float = Field(
        0.02,
        ge=0,
        le=1,
        description="standard deviation of ln(output tokens/s) between starts of one server: a "
        "ratio measured on servers that are up together has to be better by what that explains. "
        "When absent, what the store has measured on this machine, from ten starts on; 0.02 is "
        "assumed before that",
    )
    restart_count: int = Field(
        1_000,
        ge=2,
        le=1_000_000,
        description="starts that restart_stddev was estimated from: fewer cost more",
    )
    speed_note: str | None = Field(
        None, description="said next to every claim on speed that is measured with this profile"
    )
    kv_cache_note: str | None = Field(
        None, description="what the KV cache's type does to the variants; said in plan and verdict"
    )

    tuned: TuningProvenance | None = Field(
        None, description="written by `prepare tune`; changes nothing"
    )
    cpu_overrides: dict[Name, CpuOverride] = Field(
        default={}, description="by name; of a CPU's profile only. None of them is ever silent"
    )

    @model_validator(mode="after")
    def _fallbacks_are_a_cpus(self) -> Self:
        if self.cpu_overrides and self.accelerator != "cpu":
            raise ValueError("'cpu_overrides' are for a profile with accelerator: cpu")
        return self

    @model_validator(mode="after")
    def _a_gpu_has_no_room_for_two(self) -> Self:
        if self.server_mode == "concurrent" and self.accelerator != "cpu":
            raise ValueError("'server_mode: concurrent' is for a profile with accelerator: cpu")
        return self

    # Not a key: what is in effect follows from the machine.
    _in_effect: dict[str, CpuOverride] = PrivateAttr(default_factory=dict)

    @property
    def in_effect(self) -> dict[str, CpuOverride]:
        """The CPU overrides that have changed this profile, by name."""
        return dict(self._in_effect)

    def fit_to(self, features: Collection[str]) -> ServingProfile:
        """The profile with what its CPU overrides change on a CPU that has these features."""
        lacking = {
            n: each for n, each in self.cpu_overrides.items() if each.if_missing not in features
        }
        return self.apply_cpu_overrides(lacking)

    def apply_cpu_overrides(self, cpu_overrides: Mapping[str, CpuOverride]) -> ServingProfile:
        """The profile with these in effect, on any machine."""
        changes: dict[str, Any] = {
            "engine_arguments": dict(self.engine_arguments),
            "environment": dict(self.environment),
        }
        for each in cpu_overrides.values():
            changes["engine_arguments"] |= each.engine_arguments
            changes["environment"] |= each.environment
            if each.kv_cache_dtype is not None:
                changes["kv_cache_dtype"] = each.kv_cache_dtype
        changed = self.model_copy(update=changes)
        changed._in_effect = dict(cpu_overrides)
        return changed

    def carried_out(self, draft: str | None = None) -> ServingProfile:
        """The profile as a verdict keeps it: how both sides were served, on any machine.

        A claim's workload stands next to the rule that decides the claim.

        Args:
            draft: digest of the checkpoint that drafts, whose place is this machine's.
        """
        speculative = self.speculative
        if speculative is not None:
            speculative = speculative.model_copy(update={"model": draft})
        return self.model_copy(
            update={
                "cpu_overrides": self.in_effect,
                "speculative": speculative,
                "workloads": {},
                "ready_timeout_seconds": READY_TIMEOUT_SECONDS,
                "tuned": None,
            }
        )

    @property
    def quantizes_in_float32(self) -> bool:
        """Whether an override in effect sets it."""
        return any(each.quantize_dtype is not None for each in self._in_effect.values())

    @field_validator("engine_arguments")
    @classmethod
    def _the_engine_knows_them(
        cls, arguments: dict[str, EngineValue], profile: ValidationInfo
    ) -> dict[str, EngineValue]:
        check_counts(arguments)
        if {
            "accelerator",
            "engine",
        } <= profile.data.keys():  # one that is missing was wrong
            check_arguments(profile.data["accelerator"], arguments, profile.data["engine"])
        return arguments

    @field_validator("environment")
    @classmethod
    def _variables_of_the_engine(
        cls, variables: dict[str, str], profile: ValidationInfo
    ) -> dict[str, str]:
        if "engine" in profile.data:
            check_variables(variables, profile.data["engine"])
        return variables

    @field_validator("speculative")
    @classmethod
    def _the_engine_drafts_so(
        cls, speculative: SpeculativeConfig | None, profile: ValidationInfo
    ) -> SpeculativeConfig | None:
        if speculative is not None and {"accelerator", "engine"} <= profile.data.keys():
            speculative.check(profile.data["accelerator"], profile.data["engine"])
        return speculative

    @field_validator("cpu_overrides")
    @classmethod
    def _overrides_of_the_engine(
        cls, cpu_overrides: dict[str, CpuOverride], profile: ValidationInfo
    ) -> dict[str, CpuOverride]:
        if "engine" in profile.data:
            for each in cpu_overrides.values():
                check_counts(each.engine_arguments)
                check_arguments("cpu", each.engine_arguments, profile.data["engine"])
                check_variables(each.environment, profile.data["engine"])
        return cpu_overrides
