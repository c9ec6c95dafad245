"""About how long stages take that were never measured here: by the model's size, as a range.

The figures are assumptions, from SmolLM2-135M on two cores (2026-11) and Llama-3.1-8B on one H100,
where only vLLM was measured. What a store has measured replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SPREAD = 2.5
"""A machine may be so many times faster or slower."""
# Seconds of a stage, and for each billion parameters.
_OTHER = (5.0, 0.0)
_ON_CPU = {
    "demo_checkpoint": (12.0, 0.0),
    "quantize fp8": (6.0, 40.0),
    "quantize": (10.0, 600.0),
    "check_weights": (4.0, 40.0),
    "serve": (35.0, 40.0),
    "sanity": (5.0, 60.0),
    "evaluate": (10.0, 250.0),
    "speed": (60.0, 60.0),
}
_ON_GPU = {
    "quantize fp8": (20.0, 6.0),
    "quantize": (60.0, 120.0),
    "check_weights": (20.0, 12.0),
    "serve": (45.0, 3.0),
    "sanity": (10.0, 1.0),
    "evaluate": (30.0, 25.0),
    "speed": (400.0, 20.0),
}


@dataclass(frozen=True)
class Expected:
    """Seconds from and to; the same where all was measured here."""

    low: float
    high: float

    @property
    def words(self) -> str:
        """Minutes in words."""
        if self.low == self.high:
            return f"about {self.low / 60:.1f} minutes"
        least = max(1, round(self.low / 60))
        most = max(least + 1, round(self.high / 60))
        return f"about {least:,} to {most:,} minutes, by the model's size"


def assume(stage: str, parameters: int, accelerator: str) -> Expected:
    """Return a stage's range; `stage` as in `quantize fp8`, `quantize` or `evaluate`."""
    figures = _ON_CPU if accelerator == "cpu" else _ON_GPU
    fixed, by_billion = figures.get(stage, figures.get(stage.partition(" ")[0], _OTHER))
    seconds = fixed + by_billion * parameters / 1e9
    return Expected(seconds / SPREAD, seconds * SPREAD)


def add_up(stages: Iterable[Expected]) -> Expected:
    """Return the range of stages that follow one another."""
    low = 0.0
    high = 0.0
    for stage in stages:
        low += stage.low
        high += stage.high
    return Expected(low, high)
