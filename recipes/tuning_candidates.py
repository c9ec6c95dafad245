"""Candidate files of `prepare tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from recipes.catalog import load_described
from recipes.config_model import ConfigModel, Name
from recipes.engine_arguments import check_counts
from recipes.schema import AcceleratorName, EngineValue
from recipes.speculative import SpeculativeConfig, Word

if TYPE_CHECKING:
    from collections.abc import Iterable

ENGINE_DEFAULTS, AS_PROFILED = "engine-defaults", "profile"
Lever = Literal[
    "batching",
    "prefix_caching",
    "kv_cache_dtype",
    "quantization",
    "memory",
    "parallelism",
    "speculation",
    "compilation",
    "kernels",
]
CHANGES_OUTPUTS = frozenset(
    {
        *("kv-cache-dtype", "quantization", "dtype", "speculative-config", "spec-method"),
        *("attention-backend", "attention-config", "quantization-config", "hf-overrides"),
    }
)
"""Engine arguments that change answers, so the gates on answers are asked again."""


class ServingCandidate(ConfigModel):
    """One serving configuration, as additions to the engine's defaults."""

    parameter: Lever
    accelerator: AcceleratorName | None = Field(
        None, description="accelerator that it is for; both if absent"
    )
    minimum_compute_capability: float | None = Field(
        None, ge=1, le=100, description="minimum of a GPU, such as 8.9 for an FP8 cache"
    )
    kv_cache_dtype: Word | None = None
    speculative: SpeculativeConfig | None = Field(
        None, description="as in a profile, with a method that needs no draft model"
    )
    engine_arguments: dict[str, EngineValue] = Field(
        default={},
        description="engine options; the baseline sets only those that divide GPUs",
    )
    environment: dict[str, str] = Field(default={}, description="merged over the profile's")

    @field_validator("engine_arguments")
    @classmethod
    def _counts_are_numbers(cls, arguments: dict[str, EngineValue]) -> dict[str, EngineValue]:
        check_counts(arguments)
        return arguments

    @model_validator(mode="after")
    def _it_changes_something(self) -> ServingCandidate:
        added = (self.kv_cache_dtype, self.speculative, self.engine_arguments, self.environment)
        if not any(added):
            raise ValueError("it changes nothing: add engine_arguments or another setting")
        if self.speculative is not None and self.speculative.model is not None:
            raise ValueError("speculative.model: draft models are not tuned")
        return self

    @property
    def changes_outputs(self) -> bool:
        """Whether it changes answers by more than rounding, which requires another gate run."""
        others = self.kv_cache_dtype or self.speculative
        return bool(others) or change_answers(self.engine_arguments)


class CandidateFile(ConfigModel):
    """Serving candidates and the rules of their screening."""

    name: Name
    summary: str
    repetitions: int = Field(3, ge=1, le=100, description="loads of each candidate")
    candidates: dict[Name, ServingCandidate] = Field(min_length=1, max_length=200)

    @model_validator(mode="after")
    def _names_are_free(self) -> CandidateFile:
        for name in (ENGINE_DEFAULTS, AS_PROFILED, "baseline"):
            if name in self.candidates:
                raise ValueError(f"candidates.{name}: this name is reserved")
        return self


def load_candidates(name: str) -> CandidateFile:
    """Return the candidates of that name or YAML file.

    Raises:
        UsageError: the file is missing or malformed.
    """
    return load_described(name, "tuning", "candidates", CandidateFile)


def change_answers(names: Iterable[str]) -> bool:
    """Return whether one of these engine arguments changes answers."""
    return any(name.partition(".")[0] in CHANGES_OUTPUTS for name in names)
