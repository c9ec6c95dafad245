"""Worker: measures blocks or rounds until a speed claim is decided, inside the `serve` environment.

A block is one load a side with the same prompts, one after the other; a coin says which goes first.
A round is one load of the candidate; of a goodput one of each side, at rates that the rule chooses
by the rounds before. Where lives alternate, one server is up, and is put under the few loads of its
life. Each block has a seed of its own: with one seed for all, a server
would be measured that has every prompt in its cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_gates.speed.draw import Draw
from pipeline.core.events import Progress
from pipeline.workers.load_generator import Endpoint, LoadGenerator

if TYPE_CHECKING:  # both need more than the standard library
    from eval_gates.speed.lives import Life, Lives
    from eval_gates.speed.load import MeasuredLoad

FIRST_LOOK = 2  # waves of the load that says how many requests the counted ones need
SPARE = 1.2  # loads are sized by a short one, and should not come out too short

Measure = Callable[[str, int, int, float | None], dict[str, Any]]
"""(side, requests, seed, rate) to the fields of a load that come from measuring."""
Rates = Mapping[str, float]
"""Requests/s of each side; of one that is not in it, the workload's own arrivals."""


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Measure on the servers that are up: until the rule has decided, or their life is over.

    Args:
        spec: claim (`ratio`, `slo`, `goodput` or `race`), name and workload, rule, sides, life
            (eval_gates/speed/lives.py), endpoints by side, tokenizer (folder), trust_remote_code.
        progress: receives how many blocks or rounds are done, of the most that there can be.
        output: has the load book, which the loads are added to.

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
        folder=output,
    )
    endpoints = {side: Endpoint(**each) for side, each in spec["endpoints"].items()}

    def measure(side: str, requests: int, seed: int, rate: float | None) -> dict[str, Any]:
        return generator.measure(endpoints[side], requests=requests, seed=seed, rate=rate)

    measure_life(spec, measure, progress, output)
    return {"load_generator": f"vllm {vllm.__version__}"}


def measure_life(spec: dict[str, Any], measure: Measure, progress: Progress, output: Path) -> None:
    """All that one life of the servers is to measure; each block is on disk before the next."""
    from eval_gates.speed.lives import Life
    from eval_gates.speed.load_book import LoadBook
    from eval_gates.speed.rule import measuring_rule

    rule, book = measuring_rule(spec["claim"], spec["rule"]), LoadBook(output)
    lives, life = rule.spread_over(spec["sides"]), Life(**spec["life"])
    loads = book.loads()
    task = f"speed {spec['name']}"
    progress.advance(task, len(loads) // lives.unit, rule.cap, "first look")
    if lives.loads is not None:
        rates = rule.next_rates(loads[: len(loads) // lives.unit * lives.unit])
        for load in generate_of_one_side(spec, lives, life, loads, measure, rates):
            book.append([load])
        return
    units = generate_units(spec, life, measure, lambda: rule.next_rates(loads))
    while rule.wants_more(loads):
        progress.advance(task, len(loads) // lives.unit, rule.cap, rule.unit)
        new = next(units)
        book.append(new)
        loads += new
    done = len(loads) // lives.unit
    progress.advance(task, done, done, rule.unit)


def generate_units(
    spec: dict[str, Any], life: Life, measure: Measure, rates: Callable[[], Rates]
) -> Iterator[list[MeasuredLoad]]:
    """Block after block, or round after round, without an end: the loads of each.

    Args:
        rates: what the next one is measured at, after the loads so far.
    """
    draw = Draw(life.draw, life.sides)
    requests = count_requests(spec["workload"], life.sides, measure, draw.look)
    for block in count(life.block):
        seed, order = draw.unit()
        where, asked = {"life": life.number, "block": block}, rates()
        yield [
            load_of(spec, measure, requests, side, asked.get(side), seed=seed, place=place, **where)
            for place, side in enumerate(order)
        ]


def generate_of_one_side(
    spec: dict[str, Any],
    lives: Lives,
    life: Life,
    before: Sequence[MeasuredLoad],
    measure: Measure,
    rates: Rates,
) -> Iterator[MeasuredLoad]:
    """The loads of one side's life, of a pair of lives that measures one side after the other."""
    (side,) = life.sides
    draw = Draw(life.draw, lives.sides)
    seeds = [draw.unit()[0] for _ in range(lives.loads or 1)]
    done = life.block % len(seeds)  # in an earlier life that ended too soon
    known = max((len(load.requests) / load.seconds for load in before), default=0.0)
    requests = count_requests(spec["workload"], life.sides, measure, draw.look, known)
    if life.place == 1 or done:
        requests = len(before[-1].requests)  # both sides of a pair are asked the same
    for block, seed in enumerate(seeds[done:], start=life.block):
        where = {"life": life.number, "block": block, "place": life.place}
        yield load_of(spec, measure, requests, side, rates.get(side), seed=seed, **where)


def load_of(
    spec: dict[str, Any],
    measure: Measure,
    requests: int,
    side: str,
    rate: float | None,
    *,
    seed: int,
    **where: int,
) -> MeasuredLoad:
    """One load, measured; `where` it stands among the others: its life, block and place.

    Args:
        requests: that it has with the workload's own arrivals.
        rate: requests/s; the workload's own arrivals when None.
    """
    from eval_gates.speed.load import MeasuredLoad

    workload = spec["workload"]
    arrivals = describe_arrivals(workload)
    if rate is not None:
        requests, arrivals["rate"] = requests_at(rate, workload), rate
    return MeasuredLoad.model_validate(
        {
            **{"side": side, "workload": spec["name"], "seed": seed, **where},
            **arrivals,
            **measure(side, requests, seed, rate),
        }
    )


def requests_at(rate: float, workload: dict[str, Any]) -> int:
    """As many as come in the warm-up, in the time that counts, and in a warm-up after it."""
    from eval_gates.speed.load import MAX_REQUESTS

    lasts = float(workload["seconds"] + 2 * workload["warmup_seconds"])
    return min(MAX_REQUESTS, math.ceil(lasts * rate))


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
    workload: dict[str, Any],
    sides: Sequence[str],
    measure: Measure,
    look: Callable[[], int],
    known: float = 0.0,
) -> int:
    """How many requests a load has, the same on both sides.

    Of a rate or a trace, as many as come in the warm-up, the time that counts, and a time as long
    as the warm-up after it. Of a concurrency a short load of each side tells how fast it is, and
    warms it up: the faster one is to be busy for the workload's seconds. So many requests a second
    are `known` of an earlier life.
    """
    from eval_gates.speed.load import MAX_REQUESTS, WAVES

    arrivals = workload["arrivals"]
    if arrivals["rate"]:
        return requests_at(float(arrivals["rate"]), workload)
    if arrivals["trace"]:
        lasts = float(workload["seconds"] + 2 * workload["warmup_seconds"])
        return len([each for each in workload["times"] if each <= lasts])
    at_once = int(arrivals["concurrency"])
    first = FIRST_LOOK * max(at_once, int(workload.get("prefixes", 1)))
    looked: float = max(first / measure(side, first, look(), None)["seconds"] for side in sides)
    wanted = SPARE * max(known, looked) * float(workload["seconds"])
    waves = max(WAVES, 2 + math.ceil(wanted / at_once))
    return min(MAX_REQUESTS, waves * at_once)
