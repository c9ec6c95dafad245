"""How a model is served: the engine's arguments and variables, a member of the deployable tuple."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, model_serializer
from pydantic.dataclasses import dataclass

from recipes.engines import DEFAULT
from recipes.schema import EngineName, EngineValue, ServingProfile

# A profile sets it by a key of its own, and the judged arguments have it among them.
KV_DTYPE = "kv-cache-dtype"


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class ServingArguments:
    """As run, so recorded and hashed."""

    engine_arguments: dict[str, EngineValue]
    environment: dict[str, str]
    engine: EngineName = DEFAULT

    @classmethod
    def of(cls, profile: ServingProfile, *, is_baseline: bool) -> ServingArguments:
        """What the profile says, with the KV dtype that it gives to the baseline or a variant."""
        kv_dtype = profile.baseline_kv_cache_dtype if is_baseline else profile.kv_cache_dtype
        return cls(
            engine_arguments={**profile.engine_arguments, KV_DTYPE: kv_dtype},
            environment=dict(profile.environment),
            engine=profile.engine,
        )

    @model_serializer
    def to_dict(self) -> dict[str, Any]:
        """Plain data for a stage's parameters; it names no engine where that is the first."""
        plain = {"engine_arguments": self.engine_arguments, "environment": self.environment}
        return plain if self.engine == DEFAULT else {"engine": self.engine, **plain}
