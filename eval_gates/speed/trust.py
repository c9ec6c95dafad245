"""Why a load cannot be trusted: whatever it measured, it was not what the claim is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from eval_gates.draft_counts import counts_between
from eval_gates.drafted import Drafted
from eval_gates.speed.load import MeasuredLoad
from eval_gates.speed.steady import NoSteadyPartError, output_rate, waves_in, window_of
from pipeline.core.record import Record

HIT_RATE_TOLERANCE = 0.05
LARGEST_LAG = 0.1  # of the time that is judged
FEWEST_WAVES = 7  # that end in the steady part: of the eight that a load has at least, one may lag
GROWTH = 2.0  # from the first quarter of the steady part to its last: then it is no steady part


class Distrust(Record):
    """One cause, at one load."""

    kind: Literal[
        "hit_rate",
        "acceptance",
        "own_cache",
        "unlike",
        "failed_requests",
        "client_lag",
        "too_short",
        "drift",
        "throttled",
        "other_process",
    ]
    side: str
    block: int = Field(description="number of the block or round, from 0")
    words: str

    def __str__(self) -> str:
        return f"{self.side}, number {self.block}: {self.words}"


def hit_rate(load: MeasuredLoad) -> float | None:
    """Share of the prompt tokens that the prefix cache answered; None where nobody counted."""
    before, after = load.before, load.after
    if before is None or after is None:
        return None
    counts = (
        before.prefix_cache_queries,
        after.prefix_cache_queries,
        before.prefix_cache_hits,
        after.prefix_cache_hits,
    )
    if None in counts:
        return None
    queries_before, queries, hits_before, hits = (int(each or 0) for each in counts)
    asked, found = queries - queries_before, hits - hits_before
    return found / asked if asked > 0 and 0 <= found <= asked else None


def drafted_in(load: MeasuredLoad) -> Drafted | None:
    """What was drafted and accepted in it; None where nobody counted."""
    before, after = load.before, load.after
    counts = counts_between(
        before.model_dump() if before is not None else None,
        after.model_dump() if after is not None else None,
    )
    return Drafted(**counts) if counts is not None else None


def undrafted(load: MeasuredLoad) -> list[Distrust]:
    """That a candidate's engine did not count what it drafted."""
    if load.side != "candidate" or drafted_in(load) is not None:
        return []
    return [_cause("acceptance", load, "the engine does not count drafted and accepted tokens")]


def distrusted(
    loads: Sequence[MeasuredLoad], *, declared: float | None, judged_s: float | None
) -> list[Distrust]:
    """All causes, in the order of measuring.

    Args:
        loads: of one claim.
        declared: hit rate of the workload; None where it declares none.
        judged_s: the shortest time that the claim is about, which the client's own lag is held
            against; None: the median answer of each load.
    """
    found = [cause for load in loads for cause in _of_one(load, declared, judged_s)]
    seen: dict[tuple[str, int], int] = {}
    for load in loads:
        block = seen.setdefault((load.side, load.seed), load.block)
        if block != load.block:
            words = f"the seed of number {block} again: its prompts may be in the cache"
            found.append(_cause("own_cache", load, words))
    return found


def _of_one(
    load: MeasuredLoad, declared: float | None, judged_s: float | None
) -> Iterator[Distrust]:
    for each in load.disturbances:
        yield _cause(each.kind, load, each.what)
    if (fault := _hit_rate_fault(load, declared)) is not None:
        yield _cause("hit_rate", load, fault)
    shortest = judged_s if judged_s is not None else _median_answer(load)
    lag = load.client_lag_s
    if lag is not None and shortest is not None and lag > LARGEST_LAG * shortest:
        words = (
            f"the client was late by {1e3 * lag:.0f} ms, more than a tenth of the "
            f"{1e3 * shortest:.0f} ms that are judged"
        )
        yield _cause("client_lag", load, words)
    try:
        waves = waves_in(load) if load.arrivals == "concurrency" else None
        output_rate(load)
    except NoSteadyPartError as error:
        # Where nothing was answered, that is what is to be said.
        if any(each is None for each in load.requests.error):
            yield _cause("too_short", load, str(error))
    else:
        if waves is not None and waves < FEWEST_WAVES:
            words = f"{waves:.1f} waves of requests in the steady part, {FEWEST_WAVES} are needed"
            yield _cause("too_short", load, words)


def _hit_rate_fault(load: MeasuredLoad, declared: float | None) -> str | None:
    if declared is None:
        return None
    measured = hit_rate(load)
    if measured is None:
        # A workload that declares no hits needs no counter: its prompts are new in each load.
        return (
            f"the engine does not count its prefix cache's hits, {declared:.2f} is declared"
            if declared > 0
            else None
        )
    if abs(measured - declared) <= HIT_RATE_TOLERANCE:
        return None
    return f"the prefix cache's hit rate was {measured:.2f}, the workload declares {declared:.2f}"


def failures(loads: Sequence[MeasuredLoad]) -> list[Distrust]:
    """Loads with requests that failed: what was not answered has no speed."""
    found = []
    for load in loads:
        errors = [error for error in load.requests.error if error is not None]
        if errors:
            words = f"{len(errors)} of {len(load.requests)} requests failed: {errors[0]}"
            found.append(_cause("failed_requests", load, words))
    return found


def unlike(baseline: MeasuredLoad, candidate: MeasuredLoad) -> list[Distrust]:
    """Two sides of a block that were not asked the same."""
    if baseline.seed == candidate.seed and baseline.prompts_sha256 == candidate.prompts_sha256:
        return []
    return [_cause("unlike", candidate, "the two sides were not asked the same")]


def drifting(last: MeasuredLoad, how: str) -> Distrust:
    """What was measured is not what comes next: its later half is another than its earlier one."""
    return _cause("drift", last, f"{how} in the later half as in the earlier, and went on")


def over_saturated(load: MeasuredLoad) -> bool:
    """Whether requests come faster than they are served: queue and time to first token both grow.

    Such a load has no steady part: the longer it lasts, the worse its latencies. Without samples
    of the queue nothing is said.
    """
    import numpy as np

    start, end = window_of(load)
    quarter = (end - start) / 4
    times = np.array(load.samples.at_s)
    queued = np.array(load.samples.running) + np.array(load.samples.waiting)
    sent = np.array(load.requests.start_s)
    ttft = np.array([np.nan if each is None else each for each in load.requests.ttft_s])

    def grows(at: np.ndarray, values: np.ndarray) -> bool:
        known = ~np.isnan(values)
        first = values[known & (at >= start) & (at < start + quarter)]
        last = values[known & (at >= end - quarter) & (at < end)]
        return bool(first.size and last.size and np.median(last) > GROWTH * np.median(first))

    waits = bool(np.any(np.array(load.samples.waiting)[times >= end - quarter] > 0))
    return waits and grows(times, queued) and grows(sent, ttft)


def _median_answer(load: MeasuredLoad) -> float | None:
    times = zip(load.requests.start_s, load.requests.end_s, strict=True)
    known = sorted(end - start for start, end in times if end is not None)
    return known[len(known) // 2] if known else None


def _cause(kind: str, load: MeasuredLoad, words: str) -> Distrust:
    return Distrust.model_validate(
        {"kind": kind, "side": load.side, "block": load.block, "words": words}
    )
