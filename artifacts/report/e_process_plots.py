"""The e-process of each sequential gate, question by question, up to its decision.

The kept answers determine it (`eval_gates/statistics/sequential.py`), or else the path in the run's
record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from artifacts.report.figure import ALL_AT_ONE_X, Figure, Table, UniqueIds, axis, colour, label
from artifacts.report.run_evidence import RunEvidence
from eval_gates.gate_report import GateReport
from eval_gates.statistics.sequential import REFUTED_LOG10, sequential_test

HEADROOM = 1.25  # of the plot above the line, where paths may end far beyond it


@dataclass(frozen=True)
class EProcessPlot:
    """One gate's evidence."""

    recipe: str  # of the variant
    gate: GateReport  # as judged
    questions: list[int]  # after which the evidence is given
    for_pass: list[float]  # log10 of the e-value against 'worse than allowed', one a question given
    for_fail: list[float]  # likewise against 'not worse than allowed'
    note: str  # where the path is from, and whether it is the one that was judged


def path_of(evidence: RunEvidence, recipe: str, gate: GateReport) -> EProcessPlot | None:
    """Return one gate's path, or None without answers and a recorded path."""
    answered = evidence.find_answers(recipe, gate.suite)
    if answered is None:
        if not gate.e_process:
            return None
        return EProcessPlot(
            recipe,
            gate,
            [point.n for point in gate.e_process],
            [point.log10_e_pass for point in gate.e_process],
            [point.log10_e_fail for point in gate.e_process],
            f"{recipe}: as the run's record has it; its answers could not be read",
        )
    result = sequential_test(
        [float(row["score"]) for row in answered.baseline],
        [float(row["score"]) for row in answered.candidate],
        answered.rule.comparison,
        gate.alpha,
        answered.population,
        planned=answered.rule.planned_bet,
        bounds=False,
    )
    same = (result.n, result.decided_at) == (gate.n, gate.decided_at)
    return EProcessPlot(
        recipe,
        gate,
        [point.questions for point in result.e_process],
        [point.log10_pass for point in result.e_process],
        [point.log10_fail for point in result.e_process],
        f"{recipe}: computed again from {result.n} kept answers, as recorded"
        if same
        else f"{recipe}: the kept answers give another path than the run's record: "
        f"run `prepare verify {evidence.report.run}`",
    )


def evidence_figures(evidence: RunEvidence, names: UniqueIds) -> list[Figure]:
    """Return one figure per sequential suite, with the paths of all variants."""
    paths: dict[str, list[EProcessPlot]] = {}
    for variant in evidence.report.variants:
        for gate in variant.gates:
            if gate.test == "sequential":
                path = path_of(evidence, variant.recipe, gate)
                if path is not None:
                    paths.setdefault(gate.suite, []).append(path)
    return [_figure(suite, found, evidence.recipes, names) for suite, found in paths.items()]


def _figure(suite: str, paths: list[EProcessPlot], recipes: list[str], names: UniqueIds) -> Figure:
    needed = max(-math.log10(path.gate.alpha) for path in paths)
    lowest = min(min(*path.for_pass, *path.for_fail, 0.0) for path in paths)
    seen = [v for p in paths for v in (*p.for_pass, *p.for_fail) if v < 2 * needed]
    bottom, top = max(lowest, -needed) * HEADROOM - 0.1, max(needed, *seen) * HEADROOM
    data: list[dict[str, Any]] = []
    for path in paths:
        data += _traces(path, recipes.index(path.recipe), top)
    return Figure(
        name=names.of("evidence", suite),
        title=f"{suite}: evidence against the number of questions",
        says="; ".join(_words(path) for path in paths),
        data=data,
        layout={
            **ALL_AT_ONE_X,
            "xaxis": axis("questions answered by both", rangemode="tozero"),
            "yaxis": axis(
                "evidence (e-value)",
                range=[bottom, top],
                **_powers_of_ten(),
            ),
            "shapes": [
                {
                    "type": "line",
                    "xref": "paper",
                    "x0": 0,
                    "x1": 1,
                    "y0": needed,
                    "y1": needed,
                    "line": {"color": "var(--ink)", "width": 1, "dash": "dot"},
                }
            ],
            "annotations": [
                {
                    "xref": "paper",
                    "x": 0,
                    "xanchor": "left",
                    "y": needed,
                    "yanchor": "bottom",
                    "showarrow": False,
                    "text": f"1/level = {10**needed:.3g}: decided",
                }
            ],
        },
        table=_table(paths),
        notes=(
            *(path.note for path in paths),
            *(
                f"{path.recipe}: the gate is undecided anyway: {path.gate.reason}"
                for path in paths
                if path.gate.decided_at is not None and path.gate.verdict == "undecided"
            ),
        ),
        height=360,
    )


def _powers_of_ten() -> dict[str, Any]:
    powers = range(-4, 9)
    return {
        "tickvals": list(powers),
        "ticktext": [f"{10.0**power:g}" for power in powers],
    }


def _traces(path: EProcessPlot, number: int, top: float) -> list[dict[str, Any]]:
    hover = "%{x} questions, e = %{customdata}<extra>%{fullData.name}</extra>"
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": label(f"{path.recipe}, {words}"),
            "x": path.questions,
            "y": [min(value, top * HEADROOM) for value in values],
            "customdata": [_describe_e_value(value) for value in values],
            "line": {"color": colour(number), "dash": dash, "width": width},
            "hovertemplate": hover,
        }
        for words, values, dash, width in (
            ("for pass", path.for_pass, "solid", 2.5),
            ("for fail", path.for_fail, "dash", 1.25),
        )
    ]
    decided = path.gate.decided_at
    if decided is not None:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(f"{path.recipe}, decided"),
                "x": [decided],
                "y": [-math.log10(path.gate.alpha)],
                "marker": {"color": colour(number), "size": 10, "symbol": "star"},
                "hovertemplate": "decided after %{x} questions<extra>%{fullData.name}</extra>",
                "showlegend": False,
            }
        )
    return traces


def _words(path: EProcessPlot) -> str:
    if path.gate.decided_at is None:
        return f"{path.recipe}: no decision in {path.gate.n} questions"
    return (
        f"{path.recipe}: the evidence reached 1/level after {path.gate.decided_at} "
        f"of {path.gate.n} questions"
    )


def _table(paths: list[EProcessPlot]) -> Table:
    return Table(
        ("variant", "questions", "decided after", "e-value for pass", "e-value for fail", "gate"),
        [
            (
                path.recipe,
                f"{path.gate.n:,}",
                "-" if path.gate.decided_at is None else f"{path.gate.decided_at:,}",
                _describe_e_value(max(path.for_pass)),
                _describe_e_value(max(path.for_fail)),
                path.gate.verdict,
            )
            for path in paths
        ],
        text=frozenset({0, 5}),
    )


def _describe_e_value(log10: float) -> str:
    """Describe an e-value; it is infinite if a hypothesis is refuted."""
    return "certain" if log10 >= REFUTED_LOG10 else f"{10**log10:,.3g}"
