"""Whether kept loads are all that a stage measured, as it drew them, under the claim's conditions.

Digests say that timings are those that were recorded. These say that no block was left out, moved
or put in from another measurement, and that measuring ended where the rule ends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from artifacts.stages.speed import SPEED, SpeedParameters
from eval_gates.speed.draw import SIDES
from eval_gates.speed.load import MeasuredLoad
from eval_gates.speed.rule import measuring_rule
from pipeline.core.stage_record import StageRecord
from recipes.policy import Policy
from recipes.speed import Accelerator, SloGate


def find_misdrawn(
    role: str,
    record: StageRecord,
    loads: Sequence[MeasuredLoad],
    policy: Policy | None,
    accelerator: Accelerator | None = None,
) -> Iterator[str]:
    """In what the loads of a stage `speed` are not those that it measured, in words.

    Args:
        role: of the stage.
        record: what it says of them.
        loads: in the order of measuring.
        policy: that they are judged by; None: not known.
        accelerator: that they were measured on; None of endpoints.

    Raises:
        EvidenceError: the record is none that prepare wrote.
        ValueError: the rule in it is none, or the loads are no blocks or rounds.
    """
    kept = SPEED.kept(record)
    asked, found = kept.parameters, kept.result
    rule = measuring_rule(asked.claim, asked.rule)
    lives = rule.spread_over([side for side in SIDES if side in asked.sides])
    units, rest = divmod(len(loads), lives.unit)
    if rest or units != found.units:
        yield f"{role}: its record counts {found.units} {rule.unit}, and there are {units}"
    looks = len(lives.sides) if asked.workload["arrivals"]["concurrency"] else 0
    drawn = list(lives.drawn(found.seed, loads, looks))
    measured = [(each.side, each.block, each.place, each.seed) for each in loads]
    if measured != drawn or not lives.succeed(loads, found.lives):
        same = sum(1 for _ in takewhile(lambda n: measured[n] == drawn[n], range(len(drawn))))
        number = same // lives.unit
        yield f"{role}: number {number} is not what its seed drew: {rule.unit} were changed"
        return
    if any(not _comes_as_asked(load, asked) for load in loads):
        yield f"{role}: its requests came otherwise than its workload says"
    rated = asked.workload["arrivals"]["rate"]
    for claim in policy.claims_on(accelerator) if policy is not None else ():
        if not role.endswith(f".{claim.name}"):
            continue
        rate = claim.gate.rate if isinstance(claim.gate, SloGate) else None
        if rate not in (None, rated):
            yield f"{role}: measured at {rated} requests/s, the policy says {rate:g}"
        said = claim.rule(accelerator, asked.rule["alpha"], asked.rule.get("hit_rate"))
        for key in sorted(said):
            if asked.rule.get(key) != said[key]:
                yield f"{role}: measured by another '{key}' than the policy's"
    if units and (
        rule.state(loads) != found.state
        or rule.wants_more(loads)
        or not rule.wants_more(loads[: -lives.unit])
    ):
        yield f"{role}: measuring did not end where its rule ends it"


def _comes_as_asked(load: MeasuredLoad, asked: SpeedParameters) -> bool:
    """Whether its requests came, and are counted, as the workload says."""
    arrivals, workload = asked.workload["arrivals"], asked.workload
    is_timed = arrivals["concurrency"] is None
    times = (workload["warmup_seconds"], workload["seconds"]) if is_timed else (None, None)
    # At which rates a goodput is measured, its rule says: others are no rounds of it.
    rate = load.rate if asked.claim == "goodput" else arrivals["rate"]
    return (load.concurrency, load.rate, load.warmup_s, load.measured_s) == (
        arrivals["concurrency"],
        rate,
        *times,
    )
