"""Gate on the work of a solved task: tokens of its answers, thoughts included."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from recipes.config_model import ConfigModel, Name, Tier
from recipes.schema import Family


class CostGate(ConfigModel):
    """Largest ratio of tokens per solved task, variant over baseline."""

    suites: list[Name] = Field(
        min_length=1,
        max_length=20,
        description="each is one gate, on its own answers; with `test: fixed`, so that both sides "
        "answer all questions",
    )
    max_ratio: dict[Family, Annotated[float, Field(ge=0.1, le=10)]] = Field(
        min_length=1,
        description="by recipe family; 1.05 is five per cent more tokens per solved task",
    )
    tier: Tier = "critical"
    expected_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None,
        description="tokens of a typical answer, for the planned power; an eighth of `max_tokens` "
        "when absent",
    )
    expected_spread: float = Field(
        0.4,
        ge=0.001,
        le=3,
        description="standard deviation of ln(tokens of the variant's answer / tokens of the "
        "baseline's), for the planned power; 0.4: lengths that differ by half are common, as of "
        "two sampled answers",
    )

    def ratio_of(self, family: str) -> float | None:
        """Return the largest ratio for recipes of that family, if it has one."""
        return next((ratio for name, ratio in self.max_ratio.items() if name == family), None)
