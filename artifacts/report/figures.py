"""The report's figures in plotly's format.

See https://plotly.com/javascript/reference/. Colors are CSS variables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from artifacts.run_record import RunReport, VariantReport
from eval_gates.depth import DepthReport
from eval_gates.gate_result import SCORE, GateResult, format_percent, format_points
from eval_gates.quality_result import SAME_DECISION, GroupReport, QualityResult
from eval_gates.speed.report import SpeedGateResult
from prepare.escape import html_text
from recipes.catalog import BASELINE

SERIES = 6
"""Colors of series; more begin again, with another symbol."""
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")


@dataclass(frozen=True)
class Table:
    """A plain table."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]  # the first of each row names it
    # columns of words; numbers are aligned right
    text: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class Figure:
    """One plot."""

    name: str  # of letters, digits and hyphens
    title: str
    says: str  # for people who cannot see it
    data: list[dict[str, Any]]  # plotly's traces
    layout: dict[str, Any]  # plotly's layout, where it differs from the page's
    table: Table
    height: int = 320  # CSS pixels

    @property
    def drawn(self) -> dict[str, Any]:
        drawn = {"data": self.data, "layout": {**self.layout, "height": self.height}}
        return dict(_make_json_ready(drawn))


def gate_figure(number: int, variant: VariantReport) -> Figure | None:
    """Return gates' changes with bounds against margins."""
    gates = [gate for gate in variant.gates if gate.estimate is not None]
    if not gates:
        return None
    names = [html_text(gate.name) for gate in gates]
    changes = [_percent(gate, gate.estimate) for gate in gates]
    below = [_percent(gate, gate.lower) for gate in gates]
    above = [_percent(gate, gate.upper) for gate in gates]
    margins = [_percent(gate, gate.allowed) for gate in gates]
    whiskers = {
        "type": "data",
        "symmetric": False,
        "array": [_distance(high, at) for high, at in zip(above, changes, strict=True)],
        "arrayminus": [_distance(at, low) for at, low in zip(changes, below, strict=True)],
        "color": "var(--series-1)",
    }
    data = [
        {
            **_marks("change, with its bounds", changes, names, "var(--series-1)", 10, "circle"),
            "error_x": whiskers,
        },
        _marks("margin", margins, names, "var(--ink)", 22, "line-ns-open"),
    ]
    rows = [
        (gate.name, *map(_shown, figures), gate.verdict)
        for gate, *figures in zip(gates, changes, below, above, margins, strict=True)
    ]
    return Figure(
        name=f"figure-gates-{number}",
        title=f"{variant.recipe}: each gate against its margin",
        says="; ".join(f"{row[0]}: {row[1]}, margin {row[4]}: {row[5]}" for row in rows),
        data=data,
        layout={
            "xaxis": _axis("change: points of a score, percent of a speed", zeroline=True),
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "hovermode": "closest",
        },
        table=Table(
            ("gate", "change", "lower bound", "upper bound", "margin", "verdict"),
            rows,
            text=frozenset({0, 5}),
        ),
        height=140 + 40 * len(gates),
    )


def curve_figures(number: int, variant: VariantReport) -> list[Figure]:
    """Return both sides' scores by depth and by number of tools, for each suite that has these."""
    figures = []
    for place, gate in enumerate(variant.quality):
        name = f"{number}-{place}"
        if len(gate.depths) > 1:
            figures.append(_depth_figure(f"figure-depth-{name}", variant.recipe, gate))
        if gate.metric == SAME_DECISION and any(row.kind == "rung" for row in gate.groups):
            figures.append(_tools_figure(f"figure-tools-{name}", variant.recipe, gate))
    return figures


def _depth_figure(name: str, recipe: str, gate: QualityResult) -> Figure:
    nats = ["" if row.nats is None else f"{row.nats:.3f}" for row in gate.depths]
    return _curve_figure(
        name,
        f"{recipe}: {gate.name} by tokens before the answer",
        recipe,
        dict(zip([row.words for row in gate.depths], gate.depths, strict=True)),
        axes=("tokens before the answer", "score, percent"),
        columns=("tokens", "questions"),
        last=("nats lost a token", nats),
    )


def _tools_figure(name: str, recipe: str, gate: QualityResult) -> Figure:
    rungs = [row for row in gate.groups if row.kind == "rung"]
    return _curve_figure(
        name,
        f"{recipe}: {gate.name}, turns that decide as the baseline by number of tools",
        recipe,
        {row.group: row for row in rungs},
        axes=("tools in the request", "same decision, percent of turns"),
        columns=("tools", "turns"),
        last=("changed", [f"{row.flips:,}" for row in rungs]),
    )


def _curve_figure(
    name: str,
    title: str,
    recipe: str,
    scores: Mapping[str, DepthReport | GroupReport],
    *,
    axes: tuple[str, str],
    columns: tuple[str, str],
    last: tuple[str, list[str]],
) -> Figure:
    """Return both sides' scores by place; the table's last column is given."""
    sides = {
        BASELINE: [100 * row.baseline for row in scores.values()],
        recipe: [100 * row.candidate for row in scores.values()],
    }
    data = []
    for side, percents in sides.items():
        color = "var(--ink)" if side == BASELINE else "var(--series-1)"
        curve = _marks(html_text(side), list(scores), percents, color, 9, "circle")
        data.append({**curve, "mode": "lines+markers"})
    rows: list[tuple[str, ...]] = [
        (
            place,
            f"{row.n:,}",
            format_percent(row.baseline, 1),
            format_percent(row.candidate, 1),
            told,
        )
        for (place, row), told in zip(scores.items(), last[1], strict=True)
    ]
    return Figure(
        name=name,
        title=title,
        says="; ".join(f"{row[0]}: {row[2]}, then {row[3]}" for row in rows),
        data=data,
        layout={"xaxis": {**_axis(axes[0]), "type": "category"}, "yaxis": _axis(axes[1])},
        table=Table((*columns, BASELINE, recipe, last[0]), rows),
    )


def tradeoff_figures(report: RunReport, baseline_bytes: int | None) -> list[Figure]:
    """Return the scores' changes against weights and throughput.

    Those of weights tell all variants, also those that --until pass did not ask.
    """
    judged = [variant for variant in report.variants if variant.gates]
    rates = [variant.rate("baseline") for variant in judged]
    megabytes = baseline_bytes / 1e6 if baseline_bytes else None
    figures = [
        _tradeoff(
            "weights, MB", megabytes, [(v, (v.weights_bytes or 0) / 1e6) for v in report.variants]
        ),
        _tradeoff(
            "output tokens/s",
            next((rate for rate in rates if rate), None),
            [(v, v.rate("candidate") or 0) for v in judged],
        ),
    ]
    return [figure for figure in figures if figure is not None]


def _tradeoff(
    title: str, of_baseline: float | None, variants: list[tuple[VariantReport, float]]
) -> Figure | None:
    data: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    if of_baseline is not None:
        data.append(_marks(BASELINE, [of_baseline], [0], "var(--ink)", 11, "diamond-open"))
        rows.append((BASELINE, f"{of_baseline:,.1f}", "", "0", "", ""))
    is_judged = False
    for number, (variant, x) in enumerate(variants):
        gates = [gate for gate in variant.gates if gate.unit == SCORE and x]
        is_judged = is_judged or bool(gates)
        if x and not variant.gates:
            rows.append((variant.recipe, f"{x:,.1f}", "", "", "", variant.verdict))
        for gate in gates:
            change = gate.estimate or 0.0
            bounds = [gate.lower or 0.0, gate.upper or 0.0]
            rows.append(
                (
                    variant.recipe,
                    f"{x:,.1f}",
                    gate.name,
                    format_points(change),
                    " to ".join(map(format_points, bounds)),
                    f"{gate.verdict}, variant {variant.verdict}",
                )
            )
        if gates:
            marks = _marks(
                html_text(variant.recipe),
                [x for _ in gates],
                [100 * (gate.estimate or 0.0) for gate in gates],
                f"var(--series-{number % SERIES + 1})",
                10,
                _SYMBOLS[number % len(_SYMBOLS)],
            )
            data.append({**marks, "text": [html_text(gate.name) for gate in gates]})
    if not is_judged:
        return None
    words = title.partition(",")[0]
    return Figure(
        name=f"figure-quality-{words.replace(' ', '-').replace('/', '-')}",
        title=f"Change of the scores against {words}",
        says="; ".join(
            f"{name} {gate}: {change} points at {x}" for name, x, gate, change, *_ in rows if change
        ),
        data=data,
        layout={
            "xaxis": _axis(title, rangemode="tozero"),
            "yaxis": _axis("change of the score, points", zeroline=True),
            "hovermode": "closest",
        },
        table=Table(
            ("variant", title, "gate", "change, points", "bounds", "verdict"),
            rows,
            text=frozenset({0, 2, 5}),
        ),
    )


def concurrency_figure(report: RunReport) -> Figure | None:
    """Return ratios over requests in flight, a curve a variant; None for fewer than two loads."""
    data: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    for number, variant in enumerate(report.variants):
        ratios = _ratios_by_concurrency(variant)
        if len(ratios) < 2:
            continue
        estimates = [gate.estimate for _, gate in ratios]
        intervals = [gate.interval or (None, None) for _, gate in ratios]
        color = f"var(--series-{number % SERIES + 1})"
        marks = _marks(
            html_text(variant.recipe),
            [concurrency for concurrency, _ in ratios],
            estimates,
            color,
            10,
            _SYMBOLS[number % len(_SYMBOLS)],
        )
        whiskers = {
            "type": "data",
            "symmetric": False,
            "array": [
                _distance(high, at) for (_, high), at in zip(intervals, estimates, strict=True)
            ],
            "arrayminus": [
                _distance(at, low) for (low, _), at in zip(intervals, estimates, strict=True)
            ],
            "color": color,
        }
        data.append(
            {**marks, "mode": "lines+markers", "line": {"color": color}, "error_y": whiskers}
        )
        rows += [
            (
                variant.recipe,
                f"{concurrency}",
                gate.gate,
                f"{gate.estimate:.3f}",
                " to ".join(f"{value:.3f}" for value in gate.interval or ()),
                f"{gate.threshold:g}",
                gate.verdict,
            )
            for concurrency, gate in ratios
        ]
    if not rows:
        return None
    return Figure(
        name="figure-speed-concurrency",
        title="Output tokens/s over the baseline's, by requests in flight",
        says="; ".join(
            f"{recipe} at {concurrency}: {ratio} ({verdict})"
            for recipe, concurrency, _, ratio, _, _, verdict in rows
        ),
        data=data,
        layout={
            "xaxis": _axis("requests in flight", type="log"),
            "yaxis": _axis("ratio of output tokens/s"),
            "hovermode": "closest",
        },
        table=Table(
            ("variant", "requests in flight", "gate", "ratio", "interval", "at least", "verdict"),
            rows,
            text=frozenset({0, 2, 6}),
        ),
    )


def _ratios_by_concurrency(variant: VariantReport) -> list[tuple[int, SpeedGateResult]]:
    measured = [
        (gate.concurrency, gate)
        for gate in variant.gates
        if isinstance(gate, SpeedGateResult)
        and gate.is_ratio
        and gate.concurrency is not None
        and gate.estimate is not None
    ]
    return sorted(measured, key=lambda ratio: ratio[0])


def _marks(
    name: str, x: list[Any], y: list[Any], color: str, size: int, symbol: str
) -> dict[str, Any]:
    marker = {"color": color, "size": size, "symbol": symbol, "line": {"width": 2}}
    kind = {"type": "scatter", "mode": "markers", "name": name}
    return {**kind, "x": x, "y": y, "marker": marker}


def _percent(gate: GateResult, value: float | None) -> float | None:
    """Return points of a score, or percent above 1."""
    if value is None:
        return None
    return 100 * value if gate.unit == SCORE else 100 * (value - 1)


def _distance(high: float | None, low: float | None) -> float:
    return max(0.0, high - low) if high is not None and low is not None else 0.0


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:+.2f}"


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": html_text(title)}, **more}


def _make_json_ready(value: Any) -> Any:
    """Replace NaN and infinity by None: one invalidates all figures."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _make_json_ready(item) for key, item in value.items()}
    return [_make_json_ready(item) for item in value] if isinstance(value, list) else value
