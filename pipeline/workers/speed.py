"""Worker: measures blocks or rounds until a speed gate is decided, inside the `serve` environment.

A block is one load per side with the same prompts, one after the other, in random order, or at the
same time where each side has separate GPUs. A round is one load of the candidate. If server
starts alternate, one server runs and receives the few loads of its start. Each block has a separate
seed: with one seed, every prompt would be in the server's cache.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_gates.speed.randomization import Randomization
from pipeline.core.errors import ServingError
from pipeline.core.events import Progress
from pipeline.core.gpu_disturbance import disturbances, gpu_states
from pipeline.core.gpus import visible_gpus
from pipeline.workers.load_generator import LoadGenerator, LoadTarget

if TYPE_CHECKING:  # both need more than the standard library
    from eval_gates.speed.load_run import LoadRun
    from eval_gates.speed.rounds import Timing
    from eval_gates.speed.server_runs import ServerRun, ServerRunSchedule

FIRST_LOOK = 2  # waves of the load that says how many requests the counted ones need
# The first wave ends with its longest answer, which takes as long as several natural ones.
NATURAL_WAVES = 6
GROWTH = 2.0  # of a load over the one before, at most

Measure = Callable[[str, int, int, float | None], dict[str, Any]]
"""(side, requests, seed, requests/s) to the fields of a load that come from measuring; the rate is
None where the workload has none."""


@dataclass(frozen=True)
class Size:
    """Number of requests of a load, and the part of its time that counts."""

    requests: int
    timing: Timing | None = None  # None at a fixed concurrency
    rate: float | None = None  # at which the requests fill the time


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Measure on the running servers, until the rule has decided or this start's loads are done.

    Args:
        spec: name and workload, rule (eval_gates/speed/gate_rule.py), sides, server run
            (eval_gates/speed/server_runs.py), endpoints by side, tokenizer (folder),
            trust_remote_code, on_gpus (whether its servers use this process's GPUs).

    Returns:
        the generator's version.
    """
    import vllm
    from vllm.benchmarks import serve

    generator = LoadGenerator(
        serve,
        spec["workload"],
        tokenizer=spec["tokenizer"],
        trust_remote_code=spec["trust_remote_code"],
    )
    endpoints = {side: LoadTarget(**each) for side, each in spec["endpoints"].items()}
    gpus = [gpu.uuid for gpu in visible_gpus()] if spec["on_gpus"] else []

    def measure(side: str, requests: int, seed: int, rate: float | None) -> dict[str, Any]:
        before = gpu_states(gpus)
        load = generator.measure(endpoints[side], requests=requests, seed=seed, rate=rate)
        disturbed = disturbances(before, gpu_states(gpus), load["seconds"])
        return {**load, "interference": list(disturbed)}

    measure_server_run(spec, measure, progress, output)
    return {"load_generator": f"vllm {vllm.__version__}"}


def measure_server_run(
    spec: dict[str, Any], measure: Measure, progress: Progress, output: Path
) -> None:
    """Measure all loads of one server start; each block is on disk before the next."""
    from eval_gates.speed.gate_rule import parse_rule
    from eval_gates.speed.load_log import LoadLog
    from eval_gates.speed.server_runs import ServerRun

    rule, book = parse_rule(spec["rule"]), LoadLog(output)
    schedule, server_run = rule.schedule(spec["sides"]), ServerRun(**spec["server_run"])
    loads = book.loads()
    task = f"speed {spec['name']}"
    progress.advance(task, len(loads) // schedule.unit, rule.cap, "first look")
    if schedule.loads is not None:
        for load in generate_of_one_side(spec, schedule, server_run, loads, measure):
            book.append([load])
        return
    units = generate_units(spec, server_run, measure, loads)
    while rule.needs_more(loads):
        progress.advance(task, len(loads) // schedule.unit, rule.cap, rule.unit)
        new = next(units)
        book.append(new)
        loads += new
        if schedule.is_swap_due(len(loads)):
            break
    done = len(loads) // schedule.unit
    progress.advance(task, done, done, rule.unit)


def generate_units(
    spec: dict[str, Any], server_run: ServerRun, measure: Measure, loads: Sequence[LoadRun]
) -> Iterator[list[LoadRun]]:
    """Yield the loads of block after block, or round after round, without an end."""
    draw = Randomization(server_run.draw, server_run.sides)
    requests = count_requests(spec["workload"], server_run.sides, measure, draw.next_probe)
    is_apart = spec["rule"].get("server_mode") == "swapped"
    for block in count(server_run.block):
        seed, order = draw.next_unit()
        where, size = (
            {"server_run": server_run.number, "block": block},
            size_of(spec, loads, seed, requests),
        )
        measured = measure
        if is_apart:
            order = list(server_run.sides)
            measured = measure_at_once(measure, order, size.requests, seed, size.rate)
        yield [
            load_of(spec, measured, size, side, seed=seed, order=place, **where)
            for place, side in enumerate(order)
        ]


def measure_at_once(
    measure: Measure, sides: Sequence[str], requests: int, seed: int, rate: float | None
) -> Measure:
    """Measure a load of each side at the same time, and return what gives the results.

    Each has its own process: a client has one connection, and one event loop for both would be late
    for both.

    Raises:
        ServingError: a load has no result.
    """
    context = multiprocessing.get_context("fork")  # the load generator is imported already

    def send(end: Connection, side: str) -> None:
        try:
            end.send((measure(side, requests, seed, rate), ""))
        except ServingError as error:
            end.send(({}, error.message))

    found, loads = {}, []
    for side in sides:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=send, args=(there, side))
        process.start()
        there.close()
        loads.append((side, here, process))
    try:
        for side, here, _ in loads:
            try:
                found[side], why = here.recv()
            except EOFError:
                why = "its load generator ended without a result"
            if why:
                raise ServingError(f"{side}: {why}")
    finally:
        for _, _, process in loads:
            process.kill()  # SIGTERM as an exception may be lost right after the fork
            process.join()
    return lambda side, *_: found[side]


def generate_of_one_side(
    spec: dict[str, Any],
    schedule: ServerRunSchedule,
    server_run: ServerRun,
    before: Sequence[LoadRun],
    measure: Measure,
) -> Iterator[LoadRun]:
    """Yield the loads of one side's server start, if the sides are measured in turn."""
    (side,) = server_run.sides
    draw = Randomization(server_run.draw, schedule.sides)
    seeds = [draw.next_unit()[0] for _ in range(schedule.loads or 1)]
    done = server_run.block % len(seeds)  # in an earlier server start that ended too soon
    warm_up_at_a_rate(spec["workload"], side, measure, draw.next_probe)
    known = max((len(load.requests) / load.seconds for load in before), default=0.0)
    requests = count_requests(spec["workload"], server_run.sides, measure, draw.next_probe, known)
    if server_run.order == 1 or done:
        requests = len(before[-1].requests)  # both sides of a pair are asked the same
    pairs = before[: len(before) // schedule.unit * schedule.unit]
    for block, seed in enumerate(seeds[done:], start=server_run.block):
        where = {"server_run": server_run.number, "block": block, "order": server_run.order}
        size = size_of(spec, pairs, seed, requests)
        yield load_of(spec, measure, size, side, seed=seed, **where)


def warm_up_at_a_rate(
    workload: dict[str, Any], side: str, measure: Measure, look: Callable[[], int]
) -> None:
    """Send a short load that does not count; at a fixed concurrency the first look does it."""
    from eval_gates.speed.rounds import count_arrivals

    rate, seconds = workload["arrivals"]["rate"], float(workload["warmup_seconds"])
    if rate and seconds:
        seed = look()
        number = count_arrivals(seed, float(rate), seconds)
        measure(side, number, seed, number / seconds)


def load_of(
    spec: dict[str, Any], measure: Measure, size: Size, side: str, *, seed: int, **where: int
) -> LoadRun:
    """Measure one load; `where` is its server run, block and place."""
    from eval_gates.speed.load_run import LoadRun

    return LoadRun.model_validate(
        {
            **{"side": side, "workload": spec["name"], "seed": seed, **where},
            **describe_arrivals(spec["workload"], size.timing),
            **measure(side, size.requests, seed, size.rate),
        }
    )


def size_of(spec: dict[str, Any], loads: Sequence[LoadRun], seed: int, requests: int) -> Size:
    """Return the size of the next load, the same on both sides."""
    from eval_gates.speed.rounds import count_arrivals, next_timing

    workload = spec["workload"]
    timing = next_timing(workload, loads)
    if timing is None:
        return Size(grown(requests, loads, float(workload["seconds"])))
    number = count_arrivals(seed, float(workload["arrivals"]["rate"]), timing.total_s)
    return Size(number, timing, number / timing.total_s)


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
    known: float = 0.0,
) -> int:
    """Return the number of requests at a fixed concurrency, the same on both sides; else 0.

    A short load of each side measures its speed, and warms it up. The faster side is to be busy for
    the workload's seconds. `known` is the requests per second of an earlier server start.
    """
    from eval_gates.speed.load_run import LENGTH_FACTOR, MAX_REQUESTS, MIN_LOAD_WAVES

    at_once = int(workload["arrivals"]["concurrency"] or 0)
    if not at_once:
        return 0
    first = FIRST_LOOK * max(at_once, int(workload.get("prefixes", 1)))
    looked: float = max(first / measure(side, first, look(), None)["seconds"] for side in sides)
    wanted = LENGTH_FACTOR * max(known, looked) * float(workload["seconds"])
    waves = max(MIN_LOAD_WAVES, 2 + math.ceil(wanted / at_once))
    waves += NATURAL_WAVES * (workload.get("output") == "natural")
    return min(MAX_REQUESTS, waves * at_once)
