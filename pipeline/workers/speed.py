"""Worker: measures blocks or rounds until a speed claim is decided, inside the `serve` environment.

A block is one load a side with the same prompts, one after the other; a coin says which goes first.
A round is one load of the candidate. Each has a seed of its own: with one seed for all, a server
would be measured that has every prompt in its cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_gates.speed.draw import SIDES, Draw
from pipeline.core.events import Progress
from pipeline.workers.load_generator import Endpoint, LoadGenerator

if TYPE_CHECKING:  # both need more than the standard library
    from eval_gates.speed.load import MeasuredLoad
    from eval_gates.speed.rule import Rule

FIRST_LOOK = 2  # waves of the load that says how many requests the counted ones need
SPARE = 1.2  # loads are sized by a short one, and should not come out too short

Measure = Callable[[str, int, int], dict[str, Any]]
"""(side, requests, seed) to the fields of a load that come from measuring."""


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Measure until the rule has decided, or the cap is reached.

    Args:
        spec: claim (`ratio` or `slo`), name and workload, rule, seed, life, endpoints by side,
            tokenizer (folder), trust_remote_code.
        progress: receives how many blocks or rounds are done, of the most that there can be.
        output: receives loads.jsonl.

    Returns:
        how many blocks or rounds there are, how it ended, and the generator's version.
    """
    import vllm
    from vllm.benchmarks import serve

    from eval_gates.speed.rule import rule_of

    generator = LoadGenerator(
        serve,
        spec["workload"],
        tokenizer=spec["tokenizer"],
        trust_remote_code=spec["trust_remote_code"],
        folder=output,
    )
    endpoints = {side: Endpoint(**each) for side, each in spec["endpoints"].items()}

    def measure(side: str, requests: int, seed: int) -> dict[str, Any]:
        return generator.measure(endpoints[side], requests=requests, seed=seed)

    units = generate_units(spec, measure, progress)
    rule = rule_of(spec["claim"], spec["rule"])
    facts = measure_until_decided(units, rule, f"speed {spec['name']}", progress, output)
    return {**facts, "load_generator": f"vllm {vllm.__version__}"}


def generate_units(
    spec: dict[str, Any], measure: Measure, progress: Progress
) -> Iterator[list[MeasuredLoad]]:
    """Block after block, or round after round, without an end: the loads of each."""
    from eval_gates.speed.load import MeasuredLoad

    workload = spec["workload"]
    sides = [side for side in SIDES if side in spec["endpoints"]]
    draw = Draw(spec["seed"], sides)
    progress.advance(f"speed {spec['name']}", 0, None, "first look")
    requests = count_requests(workload, sides, measure, draw.look)
    block = 0
    while True:
        seed, order = draw.unit()
        yield [
            MeasuredLoad.model_validate(
                {
                    **{"side": side, "workload": spec["name"], "block": block, "place": place},
                    **{"life": spec["life"], "seed": seed},
                    **describe_arrivals(workload),
                    **measure(side, requests, seed),
                }
            )
            for place, side in enumerate(order)
        ]
        block += 1


def measure_until_decided(
    units: Iterator[list[MeasuredLoad]], rule: Rule, task: str, progress: Progress, output: Path
) -> dict[str, Any]:
    """Take blocks or rounds until the rule wants no more; each is on disk before the next."""
    from eval_gates.speed.load import LOADS, lines_of

    loads: list[MeasuredLoad] = []
    done = 0
    with (output / LOADS).open("w") as file:
        while rule.wants_more(loads):
            progress.advance(task, done, rule.cap, rule.unit)
            new = next(units)
            file.writelines(lines_of(new))
            file.flush()
            loads += new
            done += 1
    progress.advance(task, done, done, rule.unit)
    return {"units": done, "state": rule.state(loads)}


def describe_arrivals(workload: dict[str, Any]) -> dict[str, Any]:
    """How the requests come, as a load says it."""
    arrivals = workload["arrivals"]
    if arrivals["concurrency"]:
        return {"arrivals": "concurrency", "concurrency": arrivals["concurrency"]}
    timed = {"warmup_s": workload["warmup_seconds"], "measured_s": workload["seconds"]}
    if arrivals["rate"]:
        return {"arrivals": "rate", "rate": arrivals["rate"], **timed}
    return {"arrivals": "trace", **timed}


def count_requests(
    workload: dict[str, Any], sides: list[str], measure: Measure, look: Callable[[], int]
) -> int:
    """How many requests a load has, the same on both sides.

    Of a rate or a trace, as many as come in the warm-up, the time that counts, and a time as long
    as the warm-up after it. Of a concurrency a short load of each side tells how fast it is, and
    warms it up: the faster one is to be busy for the workload's seconds.
    """
    from eval_gates.speed.load import MAX_REQUESTS, WAVES

    arrivals = workload["arrivals"]
    lasts = float(workload["seconds"] + 2 * workload["warmup_seconds"])
    if arrivals["rate"]:
        return min(MAX_REQUESTS, math.ceil(lasts * float(arrivals["rate"])))
    if arrivals["trace"]:
        return len([each for each in workload["times"] if each <= lasts])
    at_once = int(arrivals["concurrency"])
    first = FIRST_LOOK * max(at_once, int(workload.get("prefixes", 1)))
    a_second: float = max(first / measure(side, first, look())["seconds"] for side in sides)
    wanted = SPARE * a_second * float(workload["seconds"])
    waves = max(WAVES, 2 + math.ceil(wanted / at_once))
    return min(MAX_REQUESTS, waves * at_once)
