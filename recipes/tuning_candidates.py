"""Candidate files of `prepare tune`."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from recipes.accelerator import NamedAccelerator
from recipes.catalog import load_described
from recipes.config_model import ConfigModel, Name
from recipes.engine_arguments import check_counts
from recipes.schema import EngineValue
from recipes.speculative import SpeculativeConfig, Word

ENGINE_DEFAULTS = "engine-defaults"
AS_PROFILED = "profile"


class ServingCandidate(ConfigModel):
    """One serving configuration, as additions to the engine's defaults."""

    accelerator: NamedAccelerator | None = Field(
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
        return self


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
    """Return candidates by name or file."""
    return load_described(name, "tuning", "candidates", CandidateFile)
