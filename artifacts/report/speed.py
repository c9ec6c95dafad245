"""Speed gates: evidence by block, and latency against throughput by load."""

from __future__ import annotations

import math
from typing import Any

from artifacts.number_format import format_percent
from artifacts.report.figure import Figure, Table, UniqueIds, axis, colour, label, symbol
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_record import VariantReport
from eval_gates.speed.report import LoadSummary, SpeedGateReport


def speed_figures(evidence: RunEvidence, names: UniqueIds) -> list[Figure]:
    """Return two figures per measured speed gate of each variant."""
    return [
        figure
        for variant in evidence.report.variants
        for claim in variant.speed
        for figure in (
            _evidence(variant, claim, names) if claim.e_process else None,
            _loads(variant, claim, names) if claim.loads else None,
        )
        if figure is not None
    ]


def _evidence(variant: VariantReport, claim: SpeedGateReport, names: UniqueIds) -> Figure:
    counts = [point.n for point in claim.e_process]
    needed = -math.log10(claim.alpha)
    lines = (
        ("the claim holds", "solid", [point.log10_e_pass for point in claim.e_process]),
        ("it does not", "dash", [point.log10_e_fail for point in claim.e_process]),
    )
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"for '{name}'",
            "x": counts,
            "y": heights,
            "line": {"color": colour(0), "dash": dash},
        }
        for name, dash, heights in lines
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "decided",
            "x": [counts[0], counts[-1]],
            "y": [needed, needed],
            "line": {"color": "var(--ink)", "width": 1, "dash": "dot"},
        }
    )
    return Figure(
        name=names.of("speed", variant.recipe, claim.gate, "evidence"),
        title=f"{variant.recipe}, speed {claim.gate}: the evidence after each of its {claim.unit}",
        says=f"{claim.description}. {claim.verdict}: {claim.reason}",
        data=data,
        layout={"xaxis": axis(claim.unit), "yaxis": axis("evidence, power of ten")},
        table=Table(
            (claim.unit, _estimate_of(claim), "for a pass", "for a fail"),
            [
                (
                    str(point.n),
                    f"{point.mean:.3f}",
                    f"{point.log10_e_pass:.2f}",
                    f"{point.log10_e_fail:.2f}",
                )
                for point in claim.e_process
            ],
        ),
        notes=(claim.description, f"{claim.verdict}: {claim.reason}"),
    )


def _loads(variant: VariantReport, claim: SpeedGateReport, names: UniqueIds) -> Figure:
    """Plot output tokens/s (ratio) or requests/s (limits) against TTFT."""
    unit = "output tokens/s" if claim.kind == "ratio" else "requests/s"

    def speed(point: LoadSummary) -> float | None:
        return point.output_tokens_per_s if claim.kind == "ratio" else point.requests_per_s

    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": label(name),
            "x": [speed(point) for point in points],
            "y": [point.ttft_ms_p95 for point in points],
            "marker": {"color": colour(number), "symbol": symbol(number), "size": 9},
        }
        for number, (name, points) in enumerate(_groups(claim).items())
    ]
    return Figure(
        name=names.of("speed", variant.recipe, claim.gate, "loads"),
        title=f"{variant.recipe}, speed {claim.gate}: latency against throughput, load by load",
        says=f"{len(claim.loads)} loads; the verdict is not computed from these two numbers",
        data=data,
        layout={"xaxis": axis(unit), "yaxis": axis("P95 of time to first token, ms")},
        table=Table(
            (
                "load",
                unit,
                "P50 TTFT, ms",
                "P95 TTFT, ms",
                "P95 TPOT, ms",
                "hits",
                "tokens a step",
                "met_slo",
            ),
            [
                (
                    f"{point.side} {point.block}",
                    _number(speed(point)),
                    _number(point.ttft_ms_p50),
                    _number(point.ttft_ms_p95),
                    _number(point.tpot_ms_p95),
                    format_percent(point.hit_rate, 0, nothing="-"),
                    "-" if point.acceptance_length is None else f"{point.acceptance_length:.2f}",
                    "-" if point.met_slo is None else "yes" if point.met_slo else "no",
                )
                for point in claim.loads
            ],
            text=frozenset({0, 7}),
        ),
    )


def _groups(claim: SpeedGateReport) -> dict[str, list[LoadSummary]]:
    """Group loads by side and warm-up, for limits also by outcome."""
    words = {None: "", True: ", limits kept", False: ", limits not kept"}
    groups: dict[str, list[LoadSummary]] = {}
    for point in claim.loads:
        of = words[point.met_slo] if point.counts else ", warm-up"
        groups.setdefault(f"{point.side}{of}", []).append(point)
    return groups


def _estimate_of(claim: SpeedGateReport) -> str:
    return "share kept" if claim.kind == "slo" else "ratio"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
