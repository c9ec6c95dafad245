"""Quality against size, and against throughput, by suite."""

from __future__ import annotations

from typing import Any

from artifacts.number_format import format_points
from artifacts.report.figure import Figure, Table, UniqueIds, axis, colour, label, symbol
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_record import VariantReport
from eval_gates.gate_report import GateReport
from pipeline.stages.check_weights import CHECK_WEIGHTS
from pipeline.stages.judge import JUDGE
from recipes.catalog import BASELINE


def quality_figures(evidence: RunEvidence, names: UniqueIds) -> list[Figure]:
    """Return two figures per suite, if sizes and throughputs are known."""
    variants = [variant for variant in evidence.report.variants if variant.gates]
    suites = list(dict.fromkeys(gate.suite for v in variants for gate in v.gates))
    figures = []
    for suite in suites:
        for axis_title, measure, of_baseline in (
            ("weights, MB", _megabytes, baseline_megabytes(evidence)),
            ("output tokens/s", _throughput, _baseline_throughput(variants)),
        ):
            points = [
                (variant, gate, x)
                for variant in variants
                for gate in variant.gates
                if gate.suite == suite and (x := measure(variant)) is not None
            ]
            if points:
                figures.append(_figure(suite, axis_title, points, of_baseline, evidence, names))
    return figures


def baseline_megabytes(evidence: RunEvidence) -> float | None:
    """Return the unquantized weights' size in MB, from `check_weights` of any variant."""
    for recipe in evidence.recipes:
        found = evidence.kept(CHECK_WEIGHTS, recipe)
        if found is not None and found.result.size_ratio and found.result.weights_bytes:
            return float(found.result.weights_bytes / found.result.size_ratio / 1e6)
    return None


def describe_bounds(gate: GateReport) -> str:
    """Describe the bounds that the whiskers show."""
    sure = f"each whisker is a one-sided {100 * (1 - gate.alpha):g} % bound ({gate.method})"
    if gate.value == "candidate - baseline":
        return sure
    return f"{sure}; the gate itself is by recovery"


def whiskers(gate: GateReport) -> tuple[float, float]:
    """Return the distances of the bounds from the difference, in points; at least 0."""
    low, high = gate.interval
    return 100 * max(0.0, high - gate.difference), 100 * max(0.0, gate.difference - low)


def _megabytes(variant: VariantReport) -> float | None:
    return variant.weights_bytes / 1e6 if variant.weights_bytes else None


def _throughput(variant: VariantReport) -> float | None:
    return next((each.typical("candidate") for each in variant.speed if each.is_ratio), None)


def _baseline_throughput(variants: list[VariantReport]) -> float | None:
    claims = (each for variant in variants for each in variant.speed if each.is_ratio)
    return next((each.typical("baseline") for each in claims), None)


def _figure(
    suite: str,
    axis_title: str,
    points: list[tuple[VariantReport, GateReport, float]],
    of_baseline: float | None,
    evidence: RunEvidence,
    names: UniqueIds,
) -> Figure:
    data: list[dict[str, Any]] = []
    if of_baseline is not None:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": BASELINE,
                "x": [of_baseline],
                "y": [0],
                "marker": {"color": "var(--ink)", "size": 11, "symbol": "diamond-open"},
                "hovertemplate": "baseline, %{x:,.1f}<extra></extra>",
            }
        )
    for variant, gate, x in points:
        number = evidence.recipes.index(variant.recipe)
        data.append(_point(variant, gate, x, number))
        allowed = allowed_drop(evidence, variant, gate)
        if allowed is not None:
            data.append(_margin(variant, x, allowed, number))
    by = axis_title.partition(",")[0]
    return Figure(
        name=names.of("quality", suite, by),
        title=f"{suite}: quality against {by}",
        says="; ".join(
            f"{variant.recipe}: {format_points(gate.difference, 1)} points "
            f"at {x:,.1f} ({axis_title})"
            for variant, gate, x in points
        ),
        data=data,
        layout={
            "xaxis": axis(axis_title, rangemode="tozero"),
            "yaxis": axis("change of the score, points", zeroline=True),
            "hovermode": "closest",
        },
        table=_table(axis_title, points, of_baseline),
        notes=tuple(dict.fromkeys(describe_bounds(gate) for _, gate, _ in points)),
    )


def _point(variant: VariantReport, gate: GateReport, x: float, number: int) -> dict[str, Any]:
    above, below = whiskers(gate)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(variant.recipe),
        "x": [x],
        "y": [100 * gate.difference],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [above],
            "arrayminus": [below],
            "color": colour(number),
        },
        "marker": {"color": colour(number), "size": 10, "symbol": symbol(number)},
        "hovertemplate": "%{y:+.2f} points at %{x:,.1f}<extra>%{fullData.name}</extra>",
    }


def _margin(variant: VariantReport, x: float, allowed: float, number: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(f"{variant.recipe}, margin"),
        "x": [x],
        "y": [-100 * allowed],
        "marker": {
            "color": colour(number),
            "size": 22,
            "symbol": "line-ew-open",
            "line": {"width": 2},
        },
        "hovertemplate": "allowed: %{y:+.2f} points<extra>%{fullData.name}</extra>",
        "showlegend": False,
    }


def allowed_drop(evidence: RunEvidence, variant: VariantReport, gate: GateReport) -> float | None:
    """Return the drop of the mean score at the margin, as a fraction."""
    if gate.threshold < 0:
        return -gate.threshold
    judge = evidence.kept(JUDGE, variant.recipe)
    rule = judge.parameters.gates.get(gate.suite) if judge is not None else None
    return rule.comparison.allowed_drop(gate.baseline) if rule is not None else None


def _table(
    axis_title: str,
    points: list[tuple[VariantReport, GateReport, float]],
    of_baseline: float | None,
) -> Table:
    rows: list[tuple[str, ...]] = []
    if of_baseline is not None:
        rows.append((BASELINE, f"{of_baseline:,.1f}", "0", "-", "-"))
    for variant, gate, x in points:
        low, high = gate.interval
        rows.append(
            (
                variant.recipe,
                f"{x:,.1f}",
                format_points(gate.difference),
                format_points(low),
                format_points(high),
            )
        )
    return Table(("variant", axis_title, "change, points", "lower bound", "upper bound"), rows)
