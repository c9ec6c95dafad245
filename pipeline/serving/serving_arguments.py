"""The engine's arguments and variables: a member of the deployable tuple."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, model_serializer
from pydantic.dataclasses import dataclass

from recipes.engines import DEFAULT, find_engine
from recipes.engines.engine import KV_DTYPE
from recipes.schema import EngineName, EngineValue, ServingProfile
from recipes.speculative import SpeculativeConfig


class ResolvedSpeculativeConfig(SpeculativeConfig):
    """Speculative decoding as run: the draft model is identified by its digest, not its path."""

    model: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="digest of the draft's checkpoint"
    )


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class ServingArguments:
    """Arguments as run, recorded and hashed."""

    engine_arguments: dict[str, EngineValue]
    environment: dict[str, str]
    engine: EngineName = DEFAULT
    speculative: ResolvedSpeculativeConfig | None = None

    @classmethod
    def of(
        cls, profile: ServingProfile, *, is_baseline: bool, draft: str | None = None
    ) -> ServingArguments:
        """Return one side's arguments; only variants decode speculatively."""
        kv_dtype = profile.baseline_kv_cache_dtype if is_baseline else profile.kv_cache_dtype
        wanted = None if is_baseline else profile.speculative
        own = {} if is_baseline else profile.variant_arguments
        return cls(
            engine_arguments={**profile.engine_arguments, **own, KV_DTYPE: kv_dtype},
            environment=dict(profile.environment),
            engine=profile.engine,
            speculative=ResolvedSpeculativeConfig(**{**wanted.to_dict(), "model": draft})
            if wanted
            else None,
        )

    def for_engine(self, draft: str = "") -> dict[str, EngineValue]:
        """Return all arguments by long names; `draft` is a folder or ''."""
        if self.speculative is None:
            return self.engine_arguments
        extra = find_engine(self.engine).speculative_arguments(self.speculative.to_dict(), draft)
        return {**self.engine_arguments, **extra}

    @model_serializer
    def to_dict(self) -> dict[str, Any]:
        """Return parameters without default values."""
        plain: dict[str, Any] = {
            "engine_arguments": self.engine_arguments,
            "environment": self.environment,
        }
        if self.speculative is not None:
            plain["speculative"] = self.speculative.to_dict()
        return plain if self.engine == DEFAULT else {"engine": self.engine, **plain}


def draft_counters(serving: ServingArguments) -> dict[str, str]:
    """Map our counters to the engine's for speculative decoding."""
    return dict(find_engine(serving.engine).counters) if serving.speculative is not None else {}
