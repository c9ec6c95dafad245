"""Worker: measures a block's loads of running servers, inside the `serve` environment.

A short load first warms each server up, and sizes its load. Each block has its seed, or prompts
would be in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eval_gates.speed.load_client import LoadClient, LoadTarget
from eval_gates.speed.load_prompts import PromptSource, open_source
from eval_gates.speed.load_run import LENGTH_FACTOR, MIN_LOAD_WAVES, LoadLog, LoadRun
from eval_gates.speed.rules import SpeedRule
from eval_gates.speed.schedule import Timing, arrival_times, look_seed, timing_after
from prepare.errors import ServingError
from prepare.events import Progress
from prepare.gpus import disturbances, gpu_states, visible_gpus

FIRST_LOOK = 2  # waves of the short load at a fixed concurrency
# The first wave ends with its longest answer, which takes as long as several natural ones.
NATURAL_WAVES = 6

Measure = Callable[[str, int, int, Sequence[float]], dict[str, Any]]
"""(arm, requests, seed, times) to a load's measured fields; times are seconds at which requests
are sent, () at a fixed concurrency.
"""


def warm() -> None:
    """Import what a load needs."""
    import vllm.benchmarks.datasets  # noqa: F401


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Measure each load of each arm, in order.

    `spec` has `arms` (arm, side, block, server_run, order), `loads` (name, workload, rule as in
    eval_gates/speed/rules.py, seed), endpoints by arm, tokenizer (folder), trust_remote_code and
    on_gpus (servers use this process's).
    """
    import vllm

    sources = [
        open_source(
            load["workload"], spec["tokenizer"], trust_remote_code=spec["trust_remote_code"]
        )
        for load in spec["loads"]
    ]
    endpoints = {arm: LoadTarget(**target) for arm, target in spec["endpoints"].items()}
    gpus = [gpu.uuid for gpu in visible_gpus()] if spec["on_gpus"] else []

    def measures(load: dict[str, Any], source: PromptSource) -> Measure:
        workload = load["workload"]
        client = LoadClient(
            at_once=workload["arrivals"]["concurrency"],
            warmup_s=float(workload["warmup_seconds"]),
            is_natural=workload.get("output") == "natural",
        )

        def measure(arm: str, requests: int, seed: int, at: Sequence[float]) -> dict[str, Any]:
            prompts = source.draw(requests, seed)
            before = gpu_states(gpus)
            measured = client.measure(endpoints[arm], prompts, at)
            disturbed = disturbances(before, gpu_states(gpus), measured["seconds"])
            return {**measured, "interference": list(disturbed)}

        return measure

    measure_loads(spec, list(map(measures, spec["loads"], sources)), progress, output)
    return {"prompts_drawn_by": f"vllm {vllm.__version__}"}


def measure_loads(
    spec: dict[str, Any], measures: Sequence[Measure], progress: Progress, output: Path
) -> None:
    """Measure a block's loads; each is on disk before the next. `measures` has one a load."""
    log = LoadLog(output)
    total = len(spec["arms"]) * len(spec["loads"])
    done = 0
    for place in spec["arms"]:
        for load, measure in zip(spec["loads"], measures, strict=True):
            progress.advance(f"speed {load['name']}", done, total, "loads")
            log.append([measure_load(load, place, name_arm(measure), log.loads())])
            done += 1
    progress.advance(f"speed {spec['loads'][0]['name']}", done, total, "loads")


def measure_load(
    load: dict[str, Any], place: dict[str, Any], measure: Measure, before: Sequence[LoadRun]
) -> LoadRun:
    """Measure an arm's load after a short one; `before` are the block's loads so far."""
    rule = SpeedRule.model_validate(load["rule"])
    where = {name: place[name] for name in ("block", "server_run", "order")}
    size = look(load["workload"], rule, place["arm"], measure, look_seed(load["seed"]))
    others = [run for run in before if run.workload == load["name"]]
    if others and size[1] is None:
        size = (len(others[0].requests), None)  # all arms of a block are asked the same
    return load_of(load, place["arm"], measure, size, side=place["side"], **where)


def name_arm(measure: Measure) -> Measure:
    """Return the function with the arm as the place of its ServingErrors."""

    def measure_arm(arm: str, requests: int, seed: int, at: Sequence[float]) -> dict[str, Any]:
        try:
            return measure(arm, requests, seed, at)
        except ServingError as error:
            raise ServingError(error.message, where=arm) from error

    return measure_arm


def load_of(
    load: dict[str, Any],
    arm: str,
    measure: Measure,
    size: tuple[int, Timing | None],
    *,
    side: str,
    **where: int,
) -> LoadRun:
    """Measure one load; `where` is its server run, block and place."""
    arrivals = load["workload"]["arrivals"]
    seed = load["seed"]
    (requests, timing) = size
    at: Sequence[float] = ()
    told: dict[str, Any] = {"arrivals": "concurrency", "concurrency": arrivals["concurrency"]}
    if timing is not None:
        at = arrival_times(seed, float(arrivals["rate"]), timing.total_s)
        requests = len(at)
        told = {"arrivals": "rate", "rate": arrivals["rate"], **timing._asdict()}
    measured = measure(arm, requests, seed, at)
    return LoadRun.model_validate(
        {"side": side, "workload": load["name"], "seed": seed, **where, **told, **measured}
    )


def look(
    workload: dict[str, Any], rule: SpeedRule, arm: str, measure: Measure, seed: int
) -> tuple[int, Timing | None]:
    """Measure a short load; return a load's requests, or timing.

    At a fixed concurrency the server must be busy for the workload's seconds.
    """
    seconds = float(workload["seconds"])
    at_once = int(workload["arrivals"]["concurrency"] or 0)
    if not at_once:
        answers: list[float] = []
        if warmup := float(workload["warmup_seconds"]):
            at = arrival_times(seed, float(workload["arrivals"]["rate"]), warmup)
            requests = measure(arm, len(at), seed, at)["requests"]
            times = zip(requests["start_s"], requests["end_s"], strict=True)
            answers = [end - begin for begin, end in times if end is not None]
        return 0, timing_after(workload, answers)
    first = FIRST_LOOK * max(at_once, int(workload.get("prefixes", 1)))
    rate: float = first / measure(arm, first, seed, ())["seconds"]
    waves = max(MIN_LOAD_WAVES, 2 + math.ceil(LENGTH_FACTOR * rate * seconds / at_once))
    waves += NATURAL_WAVES * (workload.get("output") == "natural")
    return min(rule.max_requests, waves * at_once), None
