"""Worker: measures the loads of running servers, inside the `serve` environment.

A short load first warms each server up, and sizes the others. Each block has its seed, or prompts
would be in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eval_gates.speed.load_client import LoadClient, LoadTarget
from eval_gates.speed.load_prompts import open_source
from eval_gates.speed.load_run import LENGTH_FACTOR, MIN_LOAD_WAVES, LoadLog, LoadRun
from eval_gates.speed.rules import SpeedRule
from eval_gates.speed.schedule import Timing, arrival_times, draw_block, look_seed, timing_after
from prepare.errors import ServingError
from prepare.events import Progress
from prepare.gpus import disturbances, gpu_states, visible_gpus

FIRST_LOOK = 2  # waves of the short load at a fixed concurrency
# The first wave ends with its longest answer, which takes as long as several natural ones.
NATURAL_WAVES = 6

Measure = Callable[[str, int, int, Sequence[float]], dict[str, Any]]
"""(side, requests, seed, times) to a load's measured fields; times are seconds at which requests
are sent, () at a fixed concurrency.
"""


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Measure until the rule has its blocks or this start's load is done.

    `spec` has name, workload, rule (eval_gates/speed/rules.py), endpoints by side, tokenizer
    (folder), trust_remote_code, on_gpus (servers use this process's), and `start`: seed and
    server_run, for fresh starts also side, order and block.
    """
    import vllm

    workload = spec["workload"]
    source = open_source(workload, spec["tokenizer"], trust_remote_code=spec["trust_remote_code"])
    client = LoadClient(
        at_once=workload["arrivals"]["concurrency"],
        warmup_s=float(workload["warmup_seconds"]),
        is_natural=workload.get("output") == "natural",
    )
    endpoints = {side: LoadTarget(**each) for side, each in spec["endpoints"].items()}
    gpus = [gpu.uuid for gpu in visible_gpus()] if spec["on_gpus"] else []

    def measure(side: str, requests: int, seed: int, at: Sequence[float]) -> dict[str, Any]:
        prompts = source.draw(requests, seed)
        before = gpu_states(gpus)
        load = client.measure(endpoints[side], prompts, at)
        disturbed = disturbances(before, gpu_states(gpus), load["seconds"])
        return {**load, "interference": list(disturbed)}

    measure_loads(spec, measure, progress, output)
    return {"prompts_drawn_by": f"vllm {vllm.__version__}"}


def measure_loads(spec: dict[str, Any], measure: Measure, progress: Progress, output: Path) -> None:
    """Measure one fresh start's load, or all of lasting servers.

    Each block is on disk before the next.
    """
    log = LoadLog(output)
    rule = SpeedRule.model_validate(spec["rule"])
    loads = log.loads()
    start = spec["start"]
    measure = name_side(measure)
    looked: tuple[int, Timing | None] | None = None
    if "side" in start:
        looked = look(spec, rule, [start["side"]], measure, look_seed(start["seed"]))
        others = [load for load in loads if load.workload == spec["name"]]
        if others and looked[1] is None:
            looked = (len(others[0].requests), None)  # all arms of a block are asked the same
        log.append([load_of(spec, measure, looked, **start)])
        return
    task = f"speed {spec['name']}"
    size = len(rule.sides)
    progress.advance(task, len(loads) // size, rule.blocks, "warms up")
    while rule.needs_more(loads):
        number = len(loads) // size
        begun = start["server_run"]
        order, seed = draw_block(start["seed"], number, begun, rule.sides)
        looked = looked or look(spec, rule, rule.sides, measure, look_seed(seed))
        progress.advance(task, number, rule.blocks, rule.unit)
        where = {"block": number, "server_run": begun, "seed": seed}
        new = [
            load_of(spec, measure, looked, side=side, order=place, **where)
            for place, side in enumerate(order)
        ]
        log.append(new)
        loads += new
    progress.advance(task, len(loads) // size, len(loads) // size, rule.unit)


def name_side(measure: Measure) -> Measure:
    """Return the function with the side as the place of its ServingErrors."""

    def measure_side(side: str, requests: int, seed: int, at: Sequence[float]) -> dict[str, Any]:
        try:
            return measure(side, requests, seed, at)
        except ServingError as error:
            raise ServingError(error.message, where=side) from error

    return measure_side


def load_of(
    spec: dict[str, Any],
    measure: Measure,
    size: tuple[int, Timing | None],
    *,
    side: str,
    seed: int,
    **where: int,
) -> LoadRun:
    """Measure one load; `where` is its server run, block and place."""
    arrivals = spec["workload"]["arrivals"]
    (requests, timing) = size
    at: Sequence[float] = ()
    told: dict[str, Any] = {"arrivals": "concurrency", "concurrency": arrivals["concurrency"]}
    if timing is not None:
        at = arrival_times(seed, float(arrivals["rate"]), timing.total_s)
        requests = len(at)
        told = {"arrivals": "rate", "rate": arrivals["rate"], **timing._asdict()}
    measured = measure(side, requests, seed, at)
    return LoadRun.model_validate(
        {"side": side, "workload": spec["name"], "seed": seed, **where, **told, **measured}
    )


def look(
    spec: dict[str, Any], rule: SpeedRule, sides: Sequence[str], measure: Measure, seed: int
) -> tuple[int, Timing | None]:
    """Measure a short load of each side; return a load's requests, or timing.

    At a fixed concurrency the faster side must be busy for the workload's seconds.
    """
    workload = spec["workload"]
    seconds = float(workload["seconds"])
    at_once = int(workload["arrivals"]["concurrency"] or 0)
    if not at_once:
        answers: list[float] = []
        if warmup := float(workload["warmup_seconds"]):
            at = arrival_times(seed, float(workload["arrivals"]["rate"]), warmup)
            for side in sides:
                requests = measure(side, len(at), seed, at)["requests"]
                times = zip(requests["start_s"], requests["end_s"], strict=True)
                answers += [end - begin for begin, end in times if end is not None]
        return 0, timing_after(workload, answers)
    first = FIRST_LOOK * max(at_once, int(workload.get("prefixes", 1)))
    rate: float = max(first / measure(side, first, seed, ())["seconds"] for side in sides)
    waves = max(MIN_LOAD_WAVES, 2 + math.ceil(LENGTH_FACTOR * rate * seconds / at_once))
    waves += NATURAL_WAVES * (workload.get("output") == "natural")
    return min(rule.max_requests, waves * at_once), None
