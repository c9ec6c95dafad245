"""Worker: measures blocks until a speed gate has its number, inside the `serve` environment.

A block is one load per side with the same prompts, in drawn order. With fresh starts, one server
runs and receives one load, after a short one that warms it up. Each block has a separate seed: with
one seed, every prompt would be in the server's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_gates.speed.randomization import Randomization
from pipeline.core.events import Progress
from pipeline.core.gpu_disturbance import disturbances, gpu_states
from pipeline.core.gpus import visible_gpus
from pipeline.workers.load_client import LoadClient, LoadTarget
from pipeline.workers.load_prompts import open_source

if TYPE_CHECKING:  # both need more than the standard library
    from eval_gates.speed.load_run import LoadRun
    from eval_gates.speed.rounds import Timing
    from eval_gates.speed.server_runs import ServerRun

FIRST_LOOK = 2  # waves of the load that says how many requests the counted ones need
# The first wave ends with its longest answer, which takes as long as several natural ones.
NATURAL_WAVES = 6
GROWTH = 2.0  # of a load over the one before, at most

Measure = Callable[[str, int, int, Sequence[float]], dict[str, Any]]
"""(side, requests, seed, times) to the fields of a load that come from measuring; times are seconds
at which requests are sent, () at a fixed concurrency."""


@dataclass(frozen=True)
class Size:
    """Number of requests of a load, and the part of its time that counts."""

    requests: int
    timing: Timing | None = None  # None at a fixed concurrency
    at: Sequence[float] = ()  # seconds at which requests are sent


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Measure on the running servers, until the rule has its blocks or this start's load is done.

    Args:
        spec: name and workload, endpoints by side, tokenizer (folder), trust_remote_code, on_gpus
            (whether its servers use this process's GPUs); and of a fresh start `start`, else rule
            (eval_gates/speed/gate_rule.py), sides, server run (eval_gates/speed/server_runs.py).

    Returns:
        the version of what draws prompts.
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
    """Measure the load of one fresh start, or all of servers that stay up.

    Each block is on disk before the next.
    """
    from eval_gates.speed.gate_rule import parse_rule
    from eval_gates.speed.load_log import LoadLog
    from eval_gates.speed.server_runs import ServerRun

    book = LoadLog(output)
    loads = book.loads()
    if start := spec.get("start"):
        book.append([measure_fresh(spec, start, loads, measure)])
        return
    rule = parse_rule(spec["rule"])
    schedule, server_run = rule.schedule(spec["sides"]), ServerRun(**spec["server_run"])
    task = f"speed {spec['name']}"
    progress.advance(task, len(loads) // schedule.unit, rule.cap, "warms up")
    units = generate_units(spec, server_run, measure, loads)
    while rule.needs_more(loads):
        progress.advance(task, len(loads) // schedule.unit, rule.cap, rule.unit)
        new = next(units)
        book.append(new)
        loads += new
    done = len(loads) // schedule.unit
    progress.advance(task, done, done, rule.unit)


def generate_units(
    spec: dict[str, Any], server_run: ServerRun, measure: Measure, loads: Sequence[LoadRun]
) -> Iterator[list[LoadRun]]:
    """Yield the loads of block after block, without an end."""
    draw = Randomization(server_run.draw, server_run.sides)
    requests = count_requests(spec["workload"], server_run.sides, measure, draw.next_probe)
    for block in count(server_run.block):
        seed, order = draw.next_unit()
        where = {"server_run": server_run.number, "block": block}
        size = size_of(spec, loads, seed, requests)
        yield [
            load_of(spec, measure, size, side, seed=seed, order=place, **where)
            for place, side in enumerate(order)
        ]


def measure_fresh(
    spec: dict[str, Any], start: dict[str, Any], before: Sequence[LoadRun], measure: Measure
) -> LoadRun:
    """Measure the one load of an arm's server start, after a short one that warms it up.

    Args:
        start: side, seed, order, block and server_run of the load; look, the seed of the short one.
        before: loads of the block's arms that were measured; all are asked the same.
    """
    from eval_gates.speed.rounds import arrival_times, timing_after

    workload, side, seed = spec["workload"], start["side"], start["seed"]
    if not (rate := workload["arrivals"]["rate"]):
        looked = count_requests(workload, [side], measure, lambda: start["look"])
        size = Size(len(before[0].requests) if before else looked)
    else:
        answers = []
        if seconds := float(workload["warmup_seconds"]):
            at = arrival_times(start["look"], float(rate), seconds)
            requests = measure(side, len(at), start["look"], at)["requests"]
            times = zip(requests["start_s"], requests["end_s"], strict=True)
            answers = [end - begin for begin, end in times if end is not None]
        timing = timing_after(workload, answers)
        at = arrival_times(seed, float(rate), timing.total_s)
        size = Size(len(at), timing, at)
    where = {name: start[name] for name in ("server_run", "block", "order")}
    return load_of(spec, measure, size, side, seed=seed, **where)


def load_of(
    spec: dict[str, Any], measure: Measure, size: Size, side: str, *, seed: int, **where: int
) -> LoadRun:
    """Measure one load; `where` is its server run, block and place."""
    from eval_gates.speed.load_run import LoadRun

    return LoadRun.model_validate(
        {
            **{"side": side, "workload": spec["name"], "seed": seed, **where},
            **describe_arrivals(spec["workload"], size.timing),
            **measure(side, size.requests, seed, size.at),
        }
    )


def size_of(spec: dict[str, Any], loads: Sequence[LoadRun], seed: int, requests: int) -> Size:
    """Return the size of the next load, the same on both sides."""
    from eval_gates.speed.rounds import arrival_times, next_timing

    workload = spec["workload"]
    timing = next_timing(workload, loads)
    if timing is None:
        return Size(grown(requests, loads, float(workload["seconds"])))
    at = arrival_times(seed, float(workload["arrivals"]["rate"]), timing.total_s)
    return Size(len(at), timing, at)


def grown(requests: int, loads: Sequence[LoadRun], seconds: float) -> int:
    """Return as many requests as the last loads had, or more if their steady parts were too short.

    A disturbance while the size was determined makes loads too small.
    """
    from eval_gates.speed.load_run import MAX_REQUESTS
    from eval_gates.speed.steady_state import steady_seconds

    if not loads:
        return requests
    last = [load for load in loads if load.block == loads[-1].block]
    had = len(last[-1].requests)
    shortest = min(map(steady_seconds, last))
    factor = min(GROWTH, seconds / shortest if shortest > 0 else GROWTH)
    at_once = last[-1].concurrency or 1
    waves = math.ceil(had * max(1.0, factor) / at_once)
    return min(MAX_REQUESTS, max(requests, waves * at_once))


def describe_arrivals(workload: dict[str, Any], timing: Timing | None) -> dict[str, Any]:
    """Return a load's fields on its arrivals."""
    arrivals = workload["arrivals"]
    if timing is None:
        return {"arrivals": "concurrency", "concurrency": arrivals["concurrency"]}
    timed = {"warmup_s": timing.warmup_s, "measured_s": timing.measured_s}
    return {"arrivals": "rate", "rate": arrivals["rate"], **timed}


def count_requests(
    workload: dict[str, Any],
    sides: Sequence[str],
    measure: Measure,
    look: Callable[[], int],
) -> int:
    """Return the number of requests at a fixed concurrency, the same on both sides; else 0.

    A short load of each side measures its speed, and warms it up. The faster side is to be busy for
    the workload's seconds.
    """
    from eval_gates.speed.load_run import LENGTH_FACTOR, MAX_REQUESTS, MIN_LOAD_WAVES

    at_once = int(workload["arrivals"]["concurrency"] or 0)
    if not at_once:
        return 0
    first = FIRST_LOOK * max(at_once, int(workload.get("prefixes", 1)))
    looked: float = max(first / measure(side, first, look(), ())["seconds"] for side in sides)
    wanted = LENGTH_FACTOR * looked * float(workload["seconds"])
    waves = max(MIN_LOAD_WAVES, 2 + math.ceil(wanted / at_once))
    waves += NATURAL_WAVES * (workload.get("output") == "natural")
    return min(MAX_REQUESTS, waves * at_once)
