"""Two runs side by side: verdicts, scores, speed, and changes of the tuple."""

from __future__ import annotations

from typing import Any, TypeVar

from artifacts.gate_row import claim_rows
from artifacts.number_format import format_megabytes, format_percent, format_points
from artifacts.report.figure import Figure, Table, UniqueIds, axis, colour, label, symbol
from artifacts.report.provenance import run_facts, tuple_facts
from artifacts.report.quality import change_bounds, describe_bounds, whiskers
from artifacts.report.run_evidence import RunEvidence
from artifacts.run_outcome import verdict_word
from artifacts.run_record import VariantReport
from eval_gates.gate_report import GateReport
from recipes.catalog import BASELINE

NOT_A_CHANGE = ("run", "started", "seconds")
ROW_HEIGHT = 44
Sides = tuple[RunEvidence, RunEvidence]
Key = TypeVar("Key")
Found = TypeVar("Found")
Both = tuple[Found | None, Found | None]


def verdict_table(sides: Sides) -> Table:
    """Return every variant's verdict in both runs."""
    rows = []
    for recipe, both in variants_of(sides).items():
        rows.append(
            (
                recipe,
                *(_verdict(variant) for variant in both),
                *(format_megabytes(variant.weights_bytes if variant else None) for variant in both),
            )
        )
    return Table(
        ("variant", "verdict A", "verdict B", "weights A", "weights B"),
        rows,
        text=frozenset({0, 1, 2}),
    )


def score_table(sides: Sides) -> Table:
    """Return every gate's change against its own run's baseline."""
    rows: list[tuple[str, ...]] = []
    for (recipe, suite), (first, second) in gates_of(sides).items():
        rows.append(
            (
                f"{recipe}, {suite}",
                _scores(first),
                _scores(second),
                _change(first),
                _change(second),
                "-"
                if first is None or second is None
                else format_points(second.candidate - first.candidate),
                f"{first.verdict if first else '-'} / {second.verdict if second else '-'}",
            )
        )
    return Table(
        (
            "variant, suite",
            "A: baseline, variant",
            "B: baseline, variant",
            "A: change (bound)",
            "B: change (bound)",
            "B - A, points",
            "verdicts",
        ),
        rows,
        text=frozenset({0, 6}),
    )


def speed_table(sides: Sides) -> Table:
    """Return every gate on speed and cost with its bound, against the same run's baseline."""
    rows = []
    for recipe, both in variants_of(sides).items():
        found = [
            {row.what: row for row in claim_rows(variant)} if variant else {} for variant in both
        ]
        for name in dict.fromkeys((*found[0], *found[1])):
            claims = [of.get(name) for of in found]
            rows.append(
                (
                    f"{recipe}, {name}",
                    *(f"{row.candidate}{row.unit}" if row else "-" for row in claims),
                    *(f"{row.difference} ({row.bound or '-'})" if row else "-" for row in claims),
                    " / ".join(row.verdict if row else "-" for row in claims),
                )
            )
    return Table(
        ("variant, claim", "A: measured", "B: measured", "A (bound)", "B (bound)", "verdicts"),
        rows,
        text=frozenset({0, 5}),
    )


def changed_facts(sides: Sides) -> Table:
    """Return options and members of the tuple that differ between common sides."""
    rows: list[tuple[str, ...]] = []
    runs = [run_facts(side) for side in sides]
    rows += _find_differing("run", runs[0], runs[1], NOT_A_CHANGE)
    for recipe in (BASELINE, *variants_of(sides)):
        facts = [tuple_facts(side, recipe) for side in sides]
        if all(facts):
            rows += _find_differing(recipe, facts[0], facts[1])
    return Table(("what changed", "A", "B"), rows, text=frozenset({0, 1, 2}))


def change_figures(sides: Sides, names: UniqueIds) -> list[Figure]:
    """Return one figure with every gate's change and interval, in both runs."""
    gates = gates_of(sides)
    if not gates:
        return []
    data: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    notes: dict[str, None] = {}
    for number, letter in enumerate("AB"):
        found = [
            (f"{recipe}, {suite}", place, gate)
            for place, ((recipe, suite), both) in enumerate(gates.items())
            if (gate := both[number]) is not None
        ]
        spread = [whiskers(gate) for *_, gate in found]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"run {letter}",
                "x": [100 * gate.difference for *_, gate in found],
                "y": [place + (number - 0.5) * 0.3 for _, place, _ in found],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [above for above, _ in spread],
                    "arrayminus": [below for _, below in spread],
                    "color": colour(number),
                },
                "customdata": [label(name) for name, *_ in found],
                "marker": {"color": colour(number), "symbol": symbol(number), "size": 9},
                "hovertemplate": "%{customdata}: %{x:+.2f} points<extra>%{fullData.name}</extra>",
            }
        )
        for name, _, gate in found:
            values = (gate.difference, *change_bounds(gate))
            rows.append((f"{name}, run {letter}", *map(format_points, values)))
            notes[describe_bounds(gate)] = None
    return [
        Figure(
            name=names.of("changes"),
            title="Change of every score against its own run's baseline",
            says="; ".join(f"{row[0]}: {row[1]} points" for row in rows),
            data=data,
            layout={
                "xaxis": axis("change of the score, points", zeroline=True),
                "yaxis": {
                    "tickvals": list(range(len(gates))),
                    "ticktext": [
                        label(f"{r}<br>{s}").replace("&lt;br&gt;", "<br>") for r, s in gates
                    ],
                    "autorange": "reversed",
                    "automargin": True,
                },
                "hovermode": "closest",
            },
            table=Table(("gate", "change, points", "lower bound", "upper bound"), rows),
            notes=tuple(notes),
            height=140 + ROW_HEIGHT * len(gates),
        )
    ]


def variants_of(sides: Sides) -> dict[str, Both[VariantReport]]:
    """Return both runs' variants by recipe."""
    first, second = ({v.recipe: v for v in side.report.variants} for side in sides)
    return _put_side_by_side(first, second)


def gates_of(sides: Sides) -> dict[tuple[str, str], Both[GateReport]]:
    """Return both runs' gates by recipe and suite."""
    first, second = (
        {(v.recipe, gate.suite): gate for v in side.report.variants for gate in v.gates}
        for side in sides
    )
    return _put_side_by_side(first, second)


def _put_side_by_side(first: dict[Key, Found], second: dict[Key, Found]) -> dict[Key, Both[Found]]:
    """Return the entries of both in the first's order, None for a missing one."""
    return {key: (first.get(key), second.get(key)) for key in first | second}


def _verdict(variant: VariantReport | None) -> str:
    return "-" if variant is None else verdict_word(variant)


def _scores(gate: GateReport | None) -> str:
    if gate is None:
        return "-"
    return f"{format_percent(gate.baseline)}, {format_percent(gate.candidate)} (n {gate.n:,})"


def _change(gate: GateReport | None) -> str:
    if gate is None:
        return "-"
    return f"{format_points(gate.difference)} (> {format_points(change_bounds(gate)[0])})"


def _find_differing(
    side: str, first: dict[str, str], second: dict[str, str], but_not: tuple[str, ...] = ()
) -> list[tuple[str, ...]]:
    return [
        (f"{side}: {name}", *("-" if value is None else value for value in both))
        for name, both in _put_side_by_side(first, second).items()
        if name not in but_not and both[0] != both[1]
    ]
