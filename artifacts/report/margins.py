"""One picture a variant: each gate's change with its bounds, against its margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from artifacts.report.figure import Figure, Table, UniqueIds, axis, colour, label
from artifacts.report.quality import allowed_drop
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_record import VariantReport
from eval_gates.gate_report import GateReport, Verdict


@dataclass(frozen=True)
class Change:
    """One gate's change: points of a score, or percent of a speed."""

    name: str
    verdict: Verdict
    change: float
    lower: float | None
    upper: float | None
    margin: float | None  # the change that is exactly on the margin


def margin_figures(evidence: RunEvidence, names: UniqueIds) -> list[Figure]:
    """Return one figure per judged variant."""
    return [
        _figure(variant, changes, names)
        for variant in evidence.report.variants
        if (changes := _changes(evidence, variant))
    ]


def _changes(evidence: RunEvidence, variant: VariantReport) -> list[Change]:
    return [
        *(_of_suite(evidence, variant, gate) for gate in variant.gates),
        *(
            Change(
                name=speed.name,
                verdict=speed.verdict,
                change=100 * (speed.estimate - 1),
                lower=_percent(speed.lower),
                upper=_percent(speed.upper),
                margin=100 * (speed.threshold - 1),
            )
            for speed in variant.speed
            if speed.is_ratio and speed.estimate is not None
        ),
    ]


def _of_suite(evidence: RunEvidence, variant: VariantReport, gate: GateReport) -> Change:
    allowed = allowed_drop(evidence, variant, gate)
    return Change(
        name=gate.suite,
        verdict=gate.verdict,
        change=100 * gate.difference,
        lower=100 * gate.interval[0],
        upper=100 * gate.interval[1],
        margin=-100 * allowed if allowed is not None else None,
    )


def _percent(ratio: float | None) -> float | None:
    return 100 * (ratio - 1) if ratio is not None else None


def _figure(variant: VariantReport, changes: list[Change], names: UniqueIds) -> Figure:
    gates = [label(each.name) for each in changes]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "change, with its bounds",
            "x": [each.change for each in changes],
            "y": gates,
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [max(0.0, (each.upper or each.change) - each.change) for each in changes],
                "arrayminus": [
                    max(0.0, each.change - (each.lower if each.lower is not None else each.change))
                    for each in changes
                ],
                "color": colour(0),
            },
            "marker": {"color": colour(0), "size": 10},
            "hovertemplate": "%{y}: %{x:+.2f}<extra></extra>",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "margin",
            "x": [each.margin for each in changes],
            "y": gates,
            "marker": {
                "color": "var(--ink)",
                "size": 22,
                "symbol": "line-ns-open",
                "line": {"width": 2},
            },
            "hovertemplate": "%{y}, margin: %{x:+.2f}<extra></extra>",
        },
    ]
    return Figure(
        name=names.of("margins", variant.recipe),
        title=f"{variant.recipe}: each gate against its margin",
        says="; ".join(
            f"{each.name}: {each.change:+.2f}, at least {_shown(each.lower)}, "
            f"margin {_shown(each.margin)}: {each.verdict}"
            for each in changes
        ),
        data=data,
        layout={
            "xaxis": axis("change: points of a score, percent of a speed", zeroline=True),
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "hovermode": "closest",
        },
        table=Table(
            ("gate", "change", "lower bound", "upper bound", "margin", "verdict"),
            [
                (
                    each.name,
                    f"{each.change:+.2f}",
                    _shown(each.lower),
                    _shown(each.upper),
                    _shown(each.margin),
                    each.verdict,
                )
                for each in changes
            ],
            text=frozenset({0, 5}),
        ),
        height=140 + 40 * len(changes),
    )


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
