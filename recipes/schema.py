"""The shape of recipes and serving profiles; unknown keys are errors that name the known ones."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Literal, get_args

from pydantic import Field, field_validator

from recipes.described import Described, Name
from recipes.quantization import Calibration, Quantization

Family = Literal["fp8", "int8", "int4", "fp4"]
FAMILIES: tuple[Family, ...] = get_args(Family)
AcceleratorName = Literal["cpu", "cuda"]


class Recipe(Described):
    """How to make one variant of a checkpoint."""

    name: Name
    summary: str = Field(description="one line for `prepare recipes list`")
    family: Literal["baseline"] | Family = Field(description="which margins a policy applies")
    quantization: Quantization
    minimum_compute_capability: float | None = Field(
        None, description="of an NVIDIA GPU that runs the kernels natively, such as 8.9 for FP8"
    )
    architectures: list[str] = Field(
        default=[],
        description="those it is for: names or shell patterns, as in config.json's key "
        "'architectures'; all when empty",
    )
    unsuited_architectures: list[str] = Field(
        default=[], description="those it is not for, though 'architectures' has them"
    )
    instead: str | None = Field(
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
        if any(fnmatchcase(architecture, word) for word in self.unsuited_architectures):
            return False
        return not self.architectures or any(
            fnmatchcase(architecture, word) for word in self.architectures
        )


# --- serving profiles ---------------------------------------------------------------------------


class Workload(Described):
    """The load of the throughput gate, as `vllm bench serve` understands it (random dataset)."""

    input_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)
    requests: int = Field(ge=1)
    concurrency: int = Field(ge=1)
    warmup_requests: int = Field(2, ge=0)
    seed: int = 0


class CalibrationLimit(Described):
    """The most calibration that this machine is asked for; said aloud when it bites."""

    samples: int = Field(ge=1)
    max_tokens: int = Field(ge=16)

    def applied_to(self, calibration: Calibration) -> Calibration:
        """The calibration that is done: no more samples and tokens than these."""
        return calibration.model_copy(
            update={
                "samples": min(calibration.samples, self.samples),
                "max_tokens": min(calibration.max_tokens, self.max_tokens),
            }
        )


EngineValue = bool | int | float | str
# Set by the command itself, or by keys of their own.
ENGINE_ARGUMENTS_OF_OURS = (
    "model",
    "served-model-name",
    "host",
    "port",
    "kv-cache-dtype",
    "trust-remote-code",
)


class ServingProfile(Described):
    """Exact vLLM arguments, the load to measure with and the limits of one kind of machine."""

    name: Name
    summary: str
    accelerator: AcceleratorName
    gpu_name_contains: list[str] = Field(
        default=[], description="`--profile auto` takes the profile whose word is in the GPU's name"
    )
    kv_cache_dtype: str = Field("fp8", description="of every variant")
    baseline_kv_cache_dtype: str = Field("auto", description="of the baseline")
    engine_arguments: dict[str, EngineValue] = Field(
        default={}, description="vLLM's own, without dashes in front; true is a bare flag"
    )
    environment: dict[str, str] = Field(default={}, description="variables of the server process")
    ready_timeout_seconds: float = Field(900, gt=0)

    calibration_limit: CalibrationLimit | None = None
    workload: Workload
    throughput_note: str | None = Field(
        None, description="said beside every throughput ratio measured with this profile"
    )

    @field_validator("engine_arguments")
    @classmethod
    def _arguments_are_the_profiles(
        cls, arguments: dict[str, EngineValue]
    ) -> dict[str, EngineValue]:
        for name in arguments:
            if name in ENGINE_ARGUMENTS_OF_OURS or not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
                raise ValueError(
                    f"'{name}' is not for a profile to set: names are vLLM's long options without "
                    f"the dashes in front, and not {', '.join(ENGINE_ARGUMENTS_OF_OURS)}"
                )
        return arguments
