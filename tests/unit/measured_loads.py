"""Measured loads made up for tests: requests that all take equally long."""

from __future__ import annotations

from typing import Any

from eval_gates.speed.load import MeasuredLoad, Requests

PROMPTS = "a" * 64


def requests_in_waves(
    waves: int = 10, in_flight: int = 4, *, seconds: float = 1.0, tokens: int = 10
) -> Requests:
    """Waves of requests one after another, each `seconds` long; its first token after a tenth."""
    n = waves * in_flight
    starts = [seconds * (i // in_flight) for i in range(n)]
    return Requests(
        start_s=starts,
        ttft_s=[0.1 * seconds] * n,
        end_s=[start + seconds for start in starts],
        longest_pause_s=[0.9 * seconds / (tokens - 1)] * n,
        input_tokens=[20] * n,
        output_tokens=[tokens] * n,
        error=[None] * n,
    )


def load_in_waves(
    waves: int = 10, in_flight: int = 4, *, seconds: float = 1.0, tokens: int = 10, **changes: Any
) -> MeasuredLoad:
    """A closed loop of such waves; any field can be changed."""
    fields: dict[str, Any] = {
        "side": "candidate",
        "workload": "chat",
        "block": 0,
        "place": 0,
        "life": 0,
        "seed": 1,
        "prompts_sha256": PROMPTS,
        "arrivals": "concurrency",
        "concurrency": in_flight,
        "started": 1.7e9,
        "seconds": waves * seconds,
        "requests": requests_in_waves(waves, in_flight, seconds=seconds, tokens=tokens),
    }
    return MeasuredLoad(**{**fields, **changes})
