"""Measures the served model's speed with `vllm bench serve`'s own code."""

from __future__ import annotations

from typing import Any

from pipeline.errors import ServingError
from pipeline.serving_names import SERVED_NAME
from pipeline.stages.context import StageContext

REVISION = 1


def run(context: StageContext) -> dict[str, Any]:
    """Run the profile's workload; every request's timings are kept in requests.json.

    Raises:
        ServingError: not one request was answered, so there is nothing to measure.
    """
    facts = context.run_worker(
        "benchmark",
        {
            "workload": context.parameters["workload"],
            "url": context.runtime["url"],
            "model": SERVED_NAME,
            "tokenizer": context.runtime["tokenizer"],
        },
    )
    if not facts["output_tokens_per_s"] > 0:
        raise ServingError(
            f"none of {facts['requests']} benchmark requests was answered",
            where=context.runtime["server_log"],
            cure="read the server's log",
        )
    return facts
