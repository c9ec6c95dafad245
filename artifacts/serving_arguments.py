"""How a model is served: the engine's arguments and variables, a member of the deployable tuple."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recipes.engines import DEFAULT
from recipes.schema import ServingProfile


@dataclass(frozen=True)
class ServingArguments:
    """As run, so recorded and hashed."""

    engine_arguments: dict[str, Any]
    environment: dict[str, str]
    engine: str = DEFAULT

    @classmethod
    def of(cls, profile: ServingProfile, *, is_baseline: bool) -> ServingArguments:
        """What the profile says, with the KV dtype that it gives to the baseline or a variant."""
        kv_dtype = profile.baseline_kv_cache_dtype if is_baseline else profile.kv_cache_dtype
        return cls(
            engine_arguments={**profile.engine_arguments, "kv-cache-dtype": kv_dtype},
            environment=dict(profile.environment),
            engine=profile.engine,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a stage's parameters; it names no engine where that is the first."""
        plain = {"engine_arguments": self.engine_arguments, "environment": self.environment}
        return plain if self.engine == DEFAULT else {"engine": self.engine, **plain}
