"""An attempt, for tests that need any."""

from __future__ import annotations

from typing import Any

from pipeline.stages.attempts import Attempt, AttemptScope

SCOPE = AttemptScope(baseline={"checkpoint": "c"}, policy="p")


def some_attempt(**changes: Any) -> Attempt:
    """The first attempt with one variant, at 5 %."""
    usual = {
        "scope": SCOPE,
        "number": 1,
        "variants": {"a": "1"},
        "alpha": 0.05,
        "spending": "per_run",
        "run": "run",
    }
    return Attempt.model_validate({**usual, **changes})
