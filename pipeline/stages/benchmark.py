"""Measures the served model's speed with `vllm bench serve`'s own code."""

from __future__ import annotations

from pathlib import Path

from artifacts.serving_arguments import draft_counters
from artifacts.stages.benchmark import BenchmarkParameters, BenchmarkResult, BenchmarkRuntime
from pipeline.core.errors import ServingError
from pipeline.serving.engine_version import engine_version
from pipeline.serving.serving_names import SERVED_NAME
from pipeline.stages.context import StageContext
from recipes.engines import find_engine

# Of vLLM, whose load generator measures every engine alike.
LOAD_ENVIRONMENT = "serve"


def run(context: StageContext[BenchmarkParameters, BenchmarkRuntime]) -> BenchmarkResult:
    """Run the profile's workload; every request's timings are kept in requests.json.

    Raises:
        ServingError: not one request was answered, or the baseline (which every variant is
            compared with) left some out; a variant's failed requests are for the gate to judge.
    """
    parameters, runtime = context.parameters, context.runtime
    facts = context.run_worker(
        "benchmark",
        {
            "workload": parameters.workload.model_dump(),
            "url": runtime.url,
            "socket": runtime.socket,
            "model": SERVED_NAME,
            "tokenizer": runtime.tokenizer,
            "trust_remote_code": parameters.trust_remote_code,
            "counters": draft_counters(parameters.serving),
        },
    )
    engine = find_engine(parameters.serving.engine)
    if engine.environment != LOAD_ENVIRONMENT:  # the load generator's own version says nothing
        facts["engine_version"] = engine_version(engine.name, Path(runtime.server_python))
    found = BenchmarkResult.model_validate(facts)
    is_baseline = "weights" not in context.spec.inputs
    if not found.output_tokens_per_s > 0 or (is_baseline and found.failed_requests):
        raise ServingError(
            f"{found.failed_requests} of {found.requests} benchmark requests were not answered",
            where=runtime.server_log,
            cure="read the server's log; running the same command again measures again",
        )
    return found
