"""How a model is served: the engine's arguments and variables, a member of the deployable tuple."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, model_serializer
from pydantic.dataclasses import dataclass

from recipes.engines import DEFAULT, find_engine
from recipes.schema import EngineName, EngineValue, ServingProfile
from recipes.speculative import SpeculativeConfig

# A profile sets it by a key of its own, and the judged arguments have it among them.
KV_DTYPE = "kv-cache-dtype"


class ResolvedSpeculativeConfig(SpeculativeConfig):
    """Speculative decoding as run: what drafts is known by its content, wherever it lies."""

    model: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="digest of the draft's checkpoint"
    )


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class ServingArguments:
    """As run, so recorded and hashed."""

    engine_arguments: dict[str, EngineValue]
    environment: dict[str, str]
    engine: EngineName = DEFAULT
    speculative: ResolvedSpeculativeConfig | None = None

    @classmethod
    def of(
        cls, profile: ServingProfile, *, is_baseline: bool, draft: str | None = None
    ) -> ServingArguments:
        """What the profile says of the baseline, or of a variant.

        Args:
            profile: which gives each a KV dtype, and speculative decoding to variants alone.
            is_baseline: whose arguments.
            draft: digest of the checkpoint that drafts, where the profile names one.
        """
        kv_dtype = profile.baseline_kv_cache_dtype if is_baseline else profile.kv_cache_dtype
        wanted = None if is_baseline else profile.speculative
        return cls(
            engine_arguments={**profile.engine_arguments, KV_DTYPE: kv_dtype},
            environment=dict(profile.environment),
            engine=profile.engine,
            speculative=ResolvedSpeculativeConfig(**{**wanted.to_dict(), "model": draft})
            if wanted
            else None,
        )

    def for_engine(self, draft: str = "") -> dict[str, EngineValue]:
        """All arguments by their long names.

        Args:
            draft: folder of what drafts; '' without one.
        """
        if self.speculative is None:
            return self.engine_arguments
        told = find_engine(self.engine).speculative_arguments(self.speculative.to_dict(), draft)
        return {**self.engine_arguments, **told}

    @model_serializer
    def to_dict(self) -> dict[str, Any]:
        """Plain data for a stage's parameters; without what there was not always."""
        plain: dict[str, Any] = {
            "engine_arguments": self.engine_arguments,
            "environment": self.environment,
        }
        if self.speculative is not None:
            plain["speculative"] = self.speculative.to_dict()
        return plain if self.engine == DEFAULT else {"engine": self.engine, **plain}


def draft_counters(serving: ServingArguments) -> dict[str, str]:
    """The engine's names of its counters, by ours; empty where it drafts nothing."""
    return dict(find_engine(serving.engine).counters) if serving.speculative is not None else {}
