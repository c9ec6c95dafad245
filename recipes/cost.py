"""Gate on the tokens of a solved task, thoughts included."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from recipes.config_model import ConfigModel, Name
from recipes.schema import Family


class CostGate(ConfigModel):
    """Largest ratio of tokens per solved task, variant over baseline."""

    suites: list[Name] = Field(
        min_length=1, max_length=20, description="each is one gate, on its own answers"
    )
    max_ratio: dict[Family, Annotated[float, Field(ge=0.1, le=10)]] = Field(
        min_length=1,
        description="by recipe family; 1.05 is five per cent more tokens per solved task",
    )
    tier: Literal["supporting", "advisory"] = Field(
        "supporting",
        description="supporting: must not fail. advisory: never blocks. The interval is "
        "asymptotic, so it cannot be critical; it takes 500 problems",
    )

    def ratio_of(self, family: str) -> float | None:
        """Return the largest ratio for recipes of that family, if it has one."""
        return next((ratio for name, ratio in self.max_ratio.items() if name == family), None)
