"""A trial, for tests that need any."""

from __future__ import annotations

from typing import Any

from pipeline.stages.attempts import Attempt, Trial
from prepare.store import Store


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


def attempts_in(store: Store) -> list[Attempt]:
    """All attempts of a store."""
    files = sorted((store.root / "attempts").glob("*/*.json"))
    return [Attempt.model_validate_json(file.read_bytes()) for file in files]
