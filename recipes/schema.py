"""The shape of recipes and serving profiles; unknown keys are errors that name the known ones."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
)


class Described(BaseModel):
    """Base of everything that a user writes as YAML: frozen, and strict about keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# Names become parts of file names, roles and tags.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$")]

# --- recipes ------------------------------------------------------------------------------------


class Calibration(Described):
    """Texts that the quantizer runs through the model to see its activations."""

    dataset: str | None = Field(
        None, description="Hub dataset id, 'carried' for the project's own texts, or a file path"
    )
    split: str = Field("train", description="split of a Hub dataset")
    column: str = Field("text", description="column or JSON key that holds the text or messages")
    revision: str | None = Field(None, description="commit or tag of a Hub dataset")
    fallback: Literal["carried"] | None = Field(
        None, description="what to use when the Hub cannot be reached; it is said aloud"
    )
    samples: int = Field(256, ge=1, description="blocks of max_tokens tokens, cut from the texts")
    max_tokens: int = Field(
        512, ge=16, description="tokens of a block; texts are shuffled by seed and laid end to end"
    )
    batch_size: int = Field(1, ge=1, description="blocks a forward pass")
    seed: int = Field(20240814, description="of the shuffle, and of torch while quantizing")


class NoQuantization(Described):
    """The checkpoint as it is: the recipe of the baseline."""

    kind: Literal["none"] = "none"


class PresetQuantization(Described):
    """A compressed-tensors preset that needs no calibration data, by llm-compressor."""

    kind: Literal["preset"]
    scheme: Literal["FP8_DYNAMIC"] = Field(
        description="FP8_DYNAMIC: per-channel weights, per-token dynamic activations"
    )
    ignore: list[str] = Field(default=["lm_head"], description="modules kept in 16 bits")


class AwqQuantization(Described):
    """Activation-aware weight quantization (arXiv 2306.00978) by llm-compressor."""

    kind: Literal["awq"]
    bits: Literal[4, 8] = 4
    symmetric: bool = False
    group_size: int = Field(128, description="columns that share a scale")
    smaller_group_sizes: list[int] = Field(
        default=[64, 32],
        description="tried in this order when group_size does not divide; said aloud",
    )
    grid_points: int = Field(20, ge=1, description="candidate scales tried per layer")
    ignore: list[str] = Field(default=["lm_head"], description="modules kept in 16 bits")
    calibration: Calibration


Quantization = Annotated[
    NoQuantization | PresetQuantization | AwqQuantization, Field(discriminator="kind")
]


class Recipe(Described):
    """How to make one variant of a checkpoint."""

    name: Name
    summary: str = Field(description="one line for `prepare recipes list`")
    family: Literal["baseline", "fp8", "int4"] = Field(description="which margins a policy applies")
    quantization: Quantization
    minimum_compute_capability: float | None = Field(
        None, description="of an NVIDIA GPU that runs the kernels natively, such as 8.9 for FP8"
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
    accelerator: Literal["cpu", "cuda"]
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
