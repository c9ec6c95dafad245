"""The shape of what `prepare tune` tries: ways to serve, each with the lever that it moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, field_validator, model_validator

from recipes.catalog import load_described
from recipes.config_model import ConfigModel, Name
from recipes.engine_arguments import check_counts
from recipes.engine_facts import Lever, vllm_facts
from recipes.schema import AcceleratorName, EngineValue
from recipes.speculative import SpeculativeConfig, Word

if TYPE_CHECKING:
    from collections.abc import Iterable

ENGINE_DEFAULTS, AS_PROFILED, COMBINED = "engine-defaults", "profile", "combined"


class ServingCandidate(ConfigModel):
    """One way to serve, as additions to the engine's defaults."""

    parameter: Lever
    accelerator: AcceleratorName | None = Field(None, description="that it is for; both if absent")
    minimum_compute_capability: float | None = Field(
        None, ge=1, le=100, description="of a GPU, such as 8.9 for an FP8 cache"
    )
    kv_cache_dtype: Word | None = None
    speculative: SpeculativeConfig | None = Field(
        None, description="as of a profile, by a method that needs no draft model"
    )
    engine_arguments: dict[str, EngineValue] = Field(
        default={},
        description="the baseline leaves these to the engine, except those that divide GPUs",
    )
    environment: dict[str, str] = Field(default={}, description="over the profile's own")

    @field_validator("engine_arguments")
    @classmethod
    def _counts_are_numbers(cls, arguments: dict[str, EngineValue]) -> dict[str, EngineValue]:
        check_counts(arguments)
        return arguments

    @model_validator(mode="after")
    def _it_changes_something(self) -> ServingCandidate:
        added = (self.kv_cache_dtype, self.speculative, self.engine_arguments, self.environment)
        if not any(added):
            raise ValueError("it changes nothing: give engine_arguments, or what else it adds")
        if self.speculative is not None and self.speculative.model is not None:
            raise ValueError("speculative.model: draft models are not tuned")
        return self

    @property
    def changes_outputs(self) -> bool:
        """Whether answers have to be gated again with it, beyond what rounding does."""
        others = self.kv_cache_dtype or self.speculative
        return bool(others) or change_answers(self.engine_arguments)


class CandidateFile(ConfigModel):
    """A file of them, and how they race."""

    name: Name
    summary: str
    repetitions: int = Field(3, ge=1, le=100, description="loads of each candidate that keeps up")
    prune_margin: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="a candidate none of whose rounds comes nearer to the leader is measured no "
        "further",
    )
    candidates: dict[Name, ServingCandidate] = Field(min_length=1, max_length=200)

    @model_validator(mode="after")
    def _names_are_free(self) -> CandidateFile:
        for name in (ENGINE_DEFAULTS, AS_PROFILED, COMBINED, "baseline"):
            if name in self.candidates:
                raise ValueError(f"candidates.{name}: that name means something else here")
        return self


def load_candidates(name: str) -> CandidateFile:
    """The candidates of that name, or in that YAML file.

    Raises:
        UsageError: no such file, or a malformed one.
    """
    return load_described(name, "tuning", "candidates", CandidateFile)


def change_answers(names: Iterable[str]) -> bool:
    """Whether an engine argument of these changes answers."""
    changing = vllm_facts().changes_outputs
    return any(name.partition(".")[0] in changing for name in names)


def combine(candidates: Iterable[ServingCandidate]) -> ServingCandidate:
    """All of them together, of levers that differ; the lever is the first one's."""
    first, *others = candidates
    together = first
    for each in others:
        together = together.model_copy(
            update={
                "speculative": each.speculative or together.speculative,
                "kv_cache_dtype": each.kv_cache_dtype or together.kv_cache_dtype,
                "engine_arguments": {**together.engine_arguments, **each.engine_arguments},
                "environment": {**together.environment, **each.environment},
            }
        )
    return together
