"""Measures the served model's speed with `vllm bench serve`'s own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.errors import ServingError
from pipeline.serving.engine_version import engine_version
from pipeline.serving.serving_names import SERVED_NAME
from pipeline.stages.context import StageContext
from recipes.engines import read_engine

# Of vLLM, whose load generator measures every engine alike.
LOAD_ENVIRONMENT = "serve"


def run(context: StageContext) -> dict[str, Any]:
    """Run the profile's workload; every request's timings are kept in requests.json.

    Raises:
        ServingError: not one request was answered, or the baseline (which every variant is
            compared with) left some out; a variant's failed requests are for the gate to judge.
    """
    facts = context.run_worker(
        "benchmark",
        {
            "workload": context.parameters["workload"],
            "url": context.runtime["url"],
            "socket": context.runtime.get("socket"),
            "model": SERVED_NAME,
            "tokenizer": context.runtime["tokenizer"],
            "trust_remote_code": context.parameters["trust_remote_code"],
        },
    )
    engine = read_engine(context.parameters["serving"])
    if engine.environment != LOAD_ENVIRONMENT:  # the load generator's own version says nothing
        python = Path(context.runtime["server_python"])
        facts["engine_version"] = engine_version(engine.name, python)
    failed = facts["failed_requests"]
    is_baseline = "weights" not in context.spec.inputs
    if not facts["output_tokens_per_s"] > 0 or (is_baseline and failed):
        raise ServingError(
            f"{failed} of {facts['requests']} benchmark requests were not answered",
            where=context.runtime["server_log"],
            cure="read the server's log; running the same command again measures again",
        )
    return facts
