"""Runs the worker that measures loads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.core.errors import ServingError
from pipeline.core.process_environment import NetworkAccess
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.stages.context import StageContext
from recipes.engines import find_engine
from recipes.traffic_file import prompts_of

# One of vLLM's data sets draws prompts with Python's hash of a text, which otherwise differs in
# each process.
VARIABLES = {"PYTHONHASHSEED": "0"}
PROMPTS = "prompts.jsonl"


def measure_loads(
    context: StageContext[Any, Any],
    servers: Mapping[str, tuple[ServedModel, ServerRuntime]],
    start: Mapping[str, Any],
) -> dict[str, Any]:
    """Have the worker measure on running servers; return its facts.

    `start` is described in eval_gates/speed/speed_worker.py.
    """
    parameters, runtime = context.parameters, context.runtime
    is_ours = all(endpoint.socket is not None for _, endpoint in servers.values())
    with _prompts_in_place(context.folder / PROMPTS, parameters.workload, runtime.file) as workload:
        spec = {
            "name": parameters.name,
            "workload": workload,
            "rule": parameters.rule.model_dump(),
            "start": dict(start),
            "endpoints": {
                side: {
                    **endpoint.model_dump(include={"url", "model", "socket"}),
                    # The engine of a user's endpoint is unknown; most are vLLM's.
                    "counters": dict(find_engine(served.serving.engine).counters),
                }
                for side, (served, endpoint) in servers.items()
            },
            "tokenizer": runtime.tokenizer,
            "trust_remote_code": any(served.trust_remote_code for served, _ in servers.values()),
            "on_gpus": is_ours
            and all(served.hardware.accelerator == "cuda" for served, _ in servers.values()),
        }
        try:
            return context.run_worker(
                "eval_gates.speed.speed_worker",
                spec,
                environment=VARIABLES,
                needs=[] if is_ours else [NetworkAccess.ENDPOINT],
            )
        except ServingError as error:
            raise ServingError(
                error.message,
                where=", ".join(sorted({each.server_log for _, each in servers.values()})),
                hint="read the server's log; running the same command again goes on from here",
            ) from error


@contextmanager
def _prompts_in_place(
    copy: Path, workload: Mapping[str, Any], file: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the workload for the load generator; its file exists only meanwhile.

    Users' prompts are not evidence.
    """
    if workload["kind"] != "requests":
        yield dict(workload)
        return
    try:
        with copy.open("w") as lines:
            for prompt in prompts_of(Path(file or "")):
                lines.write(json.dumps({"prompt": prompt}) + "\n")
        yield {**workload, "file": str(copy)}
    finally:
        copy.unlink(missing_ok=True)
