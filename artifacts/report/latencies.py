"""Latency percentiles of the speed measurements: TTFT, TPOT and end to end, by side.

They pool the steady parts of all loads, warm-up included. They are descriptive: no gate uses single
requests.
"""

from __future__ import annotations

from artifacts.report.figure import (
    ALL_AT_ONE_X,
    Figure,
    Table,
    UniqueIds,
    axis,
    colour,
    label,
    symbol,
)
from artifacts.report.run_evidence import RunEvidence
from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.steady_state import NoSteadyStateError, latencies
from recipes.catalog import BASELINE

PERCENTILES = (50, 90, 95, 99)
METRICS = {
    "ttft": "time to first token (TTFT)",
    "tpot": "time per output token after the first (TPOT)",
    "latency": "end to end",
}
Percentiles = dict[int, float]


def latency_figures(evidence: RunEvidence, names: UniqueIds) -> list[Figure]:
    """Return a figure per speed gate and metric, with all sides."""
    loads: dict[str, dict[str, list[LoadRun]]] = {}
    for recipe in evidence.recipes:
        for claim, measured in evidence.loads(recipe).items():
            sides = loads.setdefault(claim, {side: [] for side in (BASELINE, *evidence.recipes)})
            for load in measured:
                sides[BASELINE if load.side == "baseline" else recipe].append(load)
    figures = []
    for claim, sides in loads.items():
        by_side = {side: each for side, each in sides.items() if each}
        notes = [f"{side}: {describe_loads(each)}" for side, each in by_side.items()]
        found = {side: percentiles_of(each) for side, each in by_side.items()}
        for metric in METRICS:
            values = {side: each[metric] for side, each in found.items() if each.get(metric)}
            if values:
                figures.append(_figure(claim, metric, values, notes, names))
    return figures


def percentiles_of(loads: list[LoadRun]) -> dict[str, Percentiles]:
    """Return milliseconds by metric and percentile, without unmeasured metrics."""
    import numpy as np

    found: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for load in loads:
        try:
            of_load = latencies(load)
        except NoSteadyStateError:
            continue
        for metric, values in found.items():
            values += getattr(of_load, f"{metric}_ms").tolist()
    return {
        metric: {p: float(np.percentile(values, p)) for p in PERCENTILES}
        for metric, values in found.items()
        if values
    }


def describe_loads(loads: list[LoadRun]) -> str:
    """Describe the requests sent."""
    failed = sum(error is not None for load in loads for error in load.requests.error)
    first, sent = loads[0], sum(len(load.requests) for load in loads)
    come = {
        "concurrency": f"{first.concurrency} in flight",
        "rate": f"{first.rate} a second",
        "trace": "at a trace's times",
    }[first.arrivals]
    return f"{first.workload}, {sent:,} requests in {len(loads)} loads, {come}; {failed} failed"


def _figure(
    claim: str, metric: str, sides: dict[str, Percentiles], notes: list[str], names: UniqueIds
) -> Figure:
    return Figure(
        name=names.of("latency", claim, metric),
        title=f"{claim}: {METRICS[metric]}",
        says="; ".join(
            f"{side}: median {values[50]:,.1f} ms" for side, values in sides.items() if 50 in values
        ),
        data=[
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label(side),
                "x": [f"p{percentile}" for percentile in values],
                "y": list(values.values()),
                "line": {"color": "var(--ink)" if side == BASELINE else colour(number - 1)},
                "marker": {"size": 9, "symbol": symbol(number)},
                "hovertemplate": "%{x}: %{y:,.1f} ms<extra>%{fullData.name}</extra>",
            }
            for number, (side, values) in enumerate(sides.items())
        ],
        layout={
            "xaxis": axis("percentile", type="category"),
            "yaxis": axis("milliseconds", rangemode="tozero"),
            **ALL_AT_ONE_X,
        },
        table=Table(
            ("side", *(f"p{percentile}, ms" for percentile in PERCENTILES)),
            [
                (side, *(f"{values[p]:,.1f}" if p in values else "-" for p in PERCENTILES))
                for side, values in sides.items()
            ],
        ),
        notes=tuple(notes) if metric == "ttft" else (),
        height=280,
    )
