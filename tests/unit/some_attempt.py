"""A trial, for tests that need any."""

from __future__ import annotations

from typing import Any

from pipeline.stages.attempts import Trial


def some_trial(**changes: Any) -> Trial:
    """One variant, at 5 %."""
    usual = {
        "baseline": {"checkpoint": "c"},
        "variants": {"a": "1"},
        "policy": "p",
        "criteria": "x",
        "alpha": 0.05,
    }
    return Trial.model_validate({**usual, **changes})
