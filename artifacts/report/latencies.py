"""Latency percentiles of the load tests: TTFT, TPOT, ITL and end to end, by side.

From every request's own timings, as `vllm bench serve` defines them: a request's end-to-end time is
its time to first token and all that followed; TPOT is the time after the first token by the tokens
after it; ITL are the single gaps of all requests. Failed requests are left out. Where the timings
are gone, the percentiles that the stage's record keeps are shown.
"""

from __future__ import annotations

from typing import Any

from artifacts.report.figure import ALL_AT_ONE_X, Figure, Names, Table, axis, colour, label, symbol
from artifacts.report.run_evidence import RunEvidence
from artifacts.stages.benchmark import BENCHMARK, BenchmarkParameters, BenchmarkResult
from pipeline.core.stage import Kept
from recipes.catalog import BASELINE
from recipes.schema import Workload

PERCENTILES = (50, 90, 95, 99)
METRICS = {
    "ttft": "time to first token (TTFT)",
    "tpot": "time per output token (TPOT)",
    "itl": "inter-token latency (ITL)",
    "e2e": "end to end",
}
Percentiles = dict[int, float]
Measured = Kept[BenchmarkParameters, BenchmarkResult]


def latency_figures(evidence: RunEvidence, names: Names) -> list[Figure]:
    """A figure a metric, with all sides that a load test measured."""
    sides: dict[str, dict[str, Percentiles]] = {}
    loads: dict[str, list[str]] = {}
    for side in (BASELINE, *evidence.recipes):
        kept = evidence.kept(BENCHMARK, side)
        if kept is not None:
            sides[side] = percentiles_of(evidence, kept)
            loads.setdefault(_load(kept), []).append(side)
    figures = []
    for metric, title in METRICS.items():
        found = {side: values[metric] for side, values in sides.items() if values.get(metric)}
        if found:
            notes = [f"{', '.join(of)}: {load}" for load, of in loads.items()]
            figures.append(_figure(metric, title, found, notes, names))
    return figures


def percentiles_of(evidence: RunEvidence, kept: Measured) -> dict[str, Percentiles]:
    """By metric, milliseconds by percentile."""
    requests = evidence.requests(kept.record)
    if requests is not None:
        timings = timings_of(requests)
        if timings["ttft"]:
            return {metric: _percentiles(values) for metric, values in timings.items() if values}
    known = kept.result.model_dump()
    return {
        metric: {
            percentile: float(value)
            for percentile in PERCENTILES
            if (value := known.get(f"{metric}_ms_p{percentile}")) is not None
        }
        for metric in METRICS
    }


def timings_of(requests: dict[str, Any]) -> dict[str, list[float]]:
    """By metric, milliseconds of each request (of `itl`, each gap) that was answered."""
    found: dict[str, list[float]] = {metric: [] for metric in METRICS}
    ttfts, gaps = requests.get("ttfts") or [], requests.get("itls") or []
    lengths = requests.get("output_lens") or []
    errors = requests.get("errors") or [""] * len(ttfts)
    for ttft, after, tokens, error in zip(ttfts, gaps, lengths, errors, strict=False):
        if error or not tokens:
            continue
        found["ttft"].append(1000 * ttft)
        found["e2e"].append(1000 * (ttft + sum(after)))
        found["itl"] += [1000 * gap for gap in after]
        if tokens > 1:
            found["tpot"].append(1000 * sum(after) / (tokens - 1))
    return found


def _percentiles(values: list[float]) -> Percentiles:
    import numpy as np

    return {p: float(np.percentile(values, p)) for p in PERCENTILES}


def _load(kept: Measured) -> str:
    workload = kept.parameters.workload
    size = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in workload)
    return f"{size}; {kept.result.failed_requests} requests failed{burst(workload)}"


def burst(workload: Workload) -> str:
    """How many requests begin together: a share of the TTFTs that no steady load has."""
    share = min(workload.concurrency / workload.requests, 1)
    return f"; {share:.0%} of the requests begin together, at the start, and wait for each other"


def _figure(
    metric: str, title: str, sides: dict[str, Percentiles], notes: list[str], names: Names
) -> Figure:
    return Figure(
        name=names.of("latency", metric),
        title=title,
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
