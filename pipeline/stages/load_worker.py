"""Runs the worker that measures loads, for the stages `speed` and `block`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ServingError
from pipeline.core.process_environment import NetworkAccess
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.stages.context import StageContext
from recipes.engines import find_engine
from recipes.traffic_file import prompts_of

# One of vLLM's data sets draws prompts with Python's hash of a text, which is another one in each
# process unless this is set.
VARIABLES = {"PYTHONHASHSEED": "0"}
PROMPTS = "prompts.jsonl"


@dataclass(frozen=True)
class LoadedServer:
    """A running server, and what it serves."""

    model: ServedModel
    endpoint: ServerRuntime


def measure_loads(
    context: StageContext[Any, Any],
    workload: Mapping[str, Any],
    servers: Mapping[str, LoadedServer],
    told: Mapping[str, Any],
    file: str | None,
    tokenizer: str,
) -> dict[str, Any]:
    """Have the worker measure on the running servers; return its facts.

    Args:
        workload: with a digest in place of its file.
        servers: by side.
        told: the rest of the worker's input.
        file: of the workload, if it has one.
        tokenizer: folder.

    Raises:
        ServingError: an endpoint did not answer any request.
    """
    is_ours = all(each.endpoint.socket is not None for each in servers.values())
    with _prompts_in_place(context.folder / PROMPTS, workload, file) as placed:
        spec = {
            **told,
            "workload": placed,
            "endpoints": {
                side: {
                    "url": each.endpoint.url,
                    "model": each.endpoint.model,
                    "socket": each.endpoint.socket,
                    # The engine of a user's endpoint is unknown; most are vLLM's.
                    "counters": dict(find_engine(each.model.serving.engine).counters),
                }
                for side, each in servers.items()
            },
            "tokenizer": tokenizer,
            "trust_remote_code": any(each.model.trust_remote_code for each in servers.values()),
            "on_gpus": is_ours
            and all(each.model.hardware.accelerator == "cuda" for each in servers.values()),
        }
        try:
            return context.run_worker(
                "pipeline.workers.speed",
                spec,
                environment=VARIABLES,
                needs=[] if is_ours else [NetworkAccess.ENDPOINT],
            )
        except ServingError as error:
            raise ServingError(
                error.message,
                where=", ".join(sorted({each.endpoint.server_log for each in servers.values()})),
                hint="read the server's log; running the same command again goes on from here",
            ) from error


@contextmanager
def _prompts_in_place(
    copy: Path, workload: Mapping[str, Any], file: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the workload in the load generator's form; a file of prompts exists only meanwhile.

    Users' prompts are not evidence: each load's digest identifies them.
    """
    try:
        if workload["kind"] != "requests":
            yield dict(workload)
            return
        with copy.open("w") as lines:
            for prompt in prompts_of(Path(file or "")):
                lines.write(json.dumps({"prompt": prompt}) + "\n")
        yield {**workload, "file": str(copy)}
    finally:
        copy.unlink(missing_ok=True)
