"""Speed gates: latency against throughput by load."""

from __future__ import annotations

from artifacts.number_format import format_percent
from artifacts.report.figure import Figure, Table, UniqueIds, axis, colour, label, symbol
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_record import VariantReport
from eval_gates.speed.report import LoadSummary, SpeedGateReport


def speed_figures(evidence: RunEvidence, names: UniqueIds) -> list[Figure]:
    """Return a figure per measured speed gate of each variant."""
    return [
        _loads(variant, claim, names)
        for variant in evidence.report.variants
        for claim in variant.speed
        if claim.loads
    ]


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
        says=f"{claim.description}. {claim.verdict}: {claim.reason}",
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
                "within",
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
                    "-" if point.within is None else "yes" if point.within else "no",
                )
                for point in claim.loads
            ],
            text=frozenset({0, 7}),
        ),
    )


def _groups(claim: SpeedGateReport) -> dict[str, list[LoadSummary]]:
    """Group loads by side and whether they count, for limits also by outcome."""
    words = {None: "", True: ", within limits", False: ", beyond a limit"}
    groups: dict[str, list[LoadSummary]] = {}
    for point in claim.loads:
        of = words[point.within] if point.counts else ", not counted"
        groups.setdefault(f"{point.side}{of}", []).append(point)
    return groups


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
