"""How a model is served: the engine's arguments and variables, a member of the deployable tuple."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recipes.schema import ServingProfile

# No profile may have them; a version that was registered before may, and they decide no answer.
CREDENTIALS = ("api-key", "hf-token")


@dataclass(frozen=True)
class ServingArguments:
    """As run, so recorded and hashed."""

    engine_arguments: dict[str, Any]
    environment: dict[str, str]

    @classmethod
    def of(cls, profile: ServingProfile, *, is_baseline: bool) -> ServingArguments:
        """What the profile says, with the KV dtype that it gives to the baseline or a variant."""
        kv_dtype = profile.baseline_kv_cache_dtype if is_baseline else profile.kv_cache_dtype
        return cls(
            engine_arguments={**profile.engine_arguments, "kv-cache-dtype": kv_dtype},
            environment=dict(profile.environment),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a stage's parameters."""
        return {"engine_arguments": self.engine_arguments, "environment": self.environment}

    def command_line(self) -> list[str]:
        """vLLM's arguments: true is a bare flag, false a flag left out."""
        words: list[str] = []
        for name, value in self.engine_arguments.items():
            if value is False or name in CREDENTIALS:
                continue
            words.append(f"--{name}")
            if value is not True:
                words.append(str(value))
        return words
