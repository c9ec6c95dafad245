"""Measures what one claim on speed rests on: blocks of both sides, or rounds of the candidate.

`loads.jsonl` has every load with the timings of its requests (eval_gates/speed/load.py), in the
order of measuring.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from artifacts.stages.speed import SpeedParameters, SpeedResult, SpeedRuntime
from eval_gates.speed.load import LOADS
from pipeline.core.digest import digest_bytes
from pipeline.core.errors import ServingError
from pipeline.core.process_environment import Need
from pipeline.stages.context import StageContext
from recipes.engines import find_engine
from recipes.traffic_file import prompts_of

# One of vLLM's data sets draws prompts with Python's hash of a text, which is another one in each
# process unless this is set.
VARIABLES = {"PYTHONHASHSEED": "0"}
Context = StageContext[SpeedParameters, SpeedRuntime]
PROMPTS = "prompts.jsonl"


def run(context: Context) -> SpeedResult:
    """Measure until the claim is decided, or its cap is reached.

    Raises:
        ServingError: an endpoint answered nothing at all.
    """
    endpoints = context.runtime.endpoints
    is_ours = all(each.socket is not None for each in endpoints.values())
    # Drawn anew each time: a server that runs on may remember the prompts of another run.
    seed = secrets.randbits(63)
    with Prompts(context) as workload:
        try:
            facts = context.run_worker(
                "speed",
                worker_spec(context, workload, seed),
                environment=VARIABLES,
                needs=[] if is_ours else [Need.ENDPOINT],
            )
        except ServingError as error:
            logs = ", ".join(sorted({each.server_log for each in endpoints.values()}))
            raise ServingError(
                error.what,
                where=logs,
                cure="read the server's log; running the same command again measures again",
            ) from error
    loads = (context.folder / LOADS).read_bytes()
    return SpeedResult(**facts, seed=seed, loads_digest=digest_bytes(loads))


class Prompts:
    """The workload as the load generator takes it; a file of prompts is there only meanwhile.

    What users sent is not evidence: which prompts they were is told by the digest of each load.
    """

    def __init__(self, context: Context) -> None:
        self._file = context.runtime.file or ""
        self._workload = context.parameters.workload
        self._copy = context.folder / PROMPTS

    def __enter__(self) -> dict[str, Any]:
        if self._workload["kind"] == "requests":
            with self._copy.open("w") as lines:
                for prompt in prompts_of(Path(self._file)):
                    lines.write(json.dumps({"prompt": prompt}) + "\n")
            return {**self._workload, "file": str(self._copy)}
        if self._workload["kind"] == "trace":
            return {**self._workload, "file": self._file}
        return self._workload

    def __exit__(self, *_: object) -> None:
        self._copy.unlink(missing_ok=True)


def worker_spec(context: Context, workload: dict[str, Any], seed: int) -> dict[str, Any]:
    """The worker's input."""
    parameters, runtime = context.parameters, context.runtime
    return {
        "claim": parameters.claim,
        "name": parameters.name,
        "workload": workload,
        "rule": parameters.rule,
        "seed": seed,
        "life": 0,
        "endpoints": {
            side: {
                "url": each.url,
                "model": each.model,
                "socket": each.socket,
                # Of somebody's endpoint the engine is not known; most are vLLM's.
                "counters": dict(find_engine(parameters.sides[side].serving.engine).counters),
            }
            for side, each in runtime.endpoints.items()
        },
        "tokenizer": runtime.tokenizer,
        "trust_remote_code": any(side.trust_remote_code for side in parameters.sides.values()),
    }
