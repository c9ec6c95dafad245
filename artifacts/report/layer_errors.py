"""Heat map of each layer's SQNR in dB, variant against source.

The stage `check_weights` writes `layers.jsonl`: a line per quantized layer with `name` and
`sqnr_db` (None if nothing was lost).
"""

from __future__ import annotations

import re
from typing import Any

from artifacts.report.figure import Figure, Table, UniqueIds, axis, label
from artifacts.report.run_evidence import RunEvidence
from eval_gates.suites.json_lines import read_rows
from pipeline.core.errors import EvaluationDataError
from pipeline.core.stage_record import StageRecord
from pipeline.stages.check_weights import CHECK_WEIGHTS, CheckWeightsResult

LAYERS = "layers.jsonl"
WORST = 10
MIN_SPAN_DB = 6.0  # dB that the colours span at least, so that hundredths do not look like damage
ROW_HEIGHT = 30
_NUMBERED = re.compile(r"^(?P<before>.*?)\.?(?P<layer>\d+)\.(?P<rest>.+)$")
Row = dict[str, Any]


def layer_figures(evidence: RunEvidence, names: UniqueIds) -> list[Figure]:
    """Return a heat map per variant with a kept table of layers."""
    figures = []
    for recipe in evidence.recipes:
        kept = evidence.kept(CHECK_WEIGHTS, recipe)
        rows = layers_of(evidence, kept.record) if kept is not None else []
        if kept is not None and any(is_drawn(row) for row in rows):
            figures.append(_figure(recipe, rows, kept.result, names))
    return figures


def layers_of(evidence: RunEvidence, record: StageRecord) -> list[Row]:
    """Return the table's rows, or [] without a table."""
    file = evidence.place(record) / LAYERS
    if not file.is_file():
        return []
    try:
        rows = [row for _, row in read_rows(file)]
    except EvaluationDataError:
        return []
    return [row for row in rows if {"name", "sqnr_db"} <= row.keys()]


def place_of(module: str) -> tuple[int | None, str]:
    """Return a module's layer and kind: `model.layers.3.mlp.up_proj` is (3, 'mlp.up_proj').

    The kind omits later numbers, such as an expert's.
    """
    found = _NUMBERED.match(module)
    if found is None:
        return None, module
    return int(found["layer"]), re.sub(r"\.\d+(?=\.|$)", "", found["rest"])


def is_drawn(row: Row) -> bool:
    """Return whether the row is in a numbered layer and has an error."""
    return row["sqnr_db"] is not None and place_of(str(row["name"]))[0] is not None


def _figure(recipe: str, rows: list[Row], found: CheckWeightsResult, names: UniqueIds) -> Figure:
    lowest: dict[tuple[str, int], float] = {}
    for row in rows:
        layer, kind = place_of(str(row["name"]))
        if layer is not None and row["sqnr_db"] is not None:
            cell = kind, layer
            lowest[cell] = min(lowest.get(cell, row["sqnr_db"]), row["sqnr_db"])
    kinds = list(dict.fromkeys(kind for kind, _ in lowest))
    layers = sorted({layer for _, layer in lowest})
    worst = sorted(
        (row for row in rows if row["sqnr_db"] is not None), key=lambda row: row["sqnr_db"]
    )
    darkest = min(lowest.values())
    return Figure(
        name=names.of("layers", recipe),
        title=f"{recipe}: SQNR by layer and kind of module",
        says=(
            f"{len(rows)} quantized layers; the worst is {worst[0]['name']} with "
            f"{worst[0]['sqnr_db']:.1f} dB, the best has {worst[-1]['sqnr_db']:.1f} dB."
        ),
        data=[
            {
                "type": "heatmap",
                "x": layers,
                "y": [label(kind) for kind in kinds],
                "z": [[lowest.get((kind, layer)) for layer in layers] for kind in kinds],
                "colorscale": "Viridis",
                "zmin": darkest,
                "zmax": max(*lowest.values(), darkest + MIN_SPAN_DB),
                "colorbar": {"title": {"text": "dB"}, "thickness": 12},
                "xgap": 1,
                "ygap": 1,
                "hoverongaps": False,
                "hovertemplate": "layer %{x}, %{y}: %{z:.1f} dB<extra></extra>",
            }
        ],
        layout={
            "xaxis": axis("layer", showgrid=False),
            "yaxis": {"automargin": True, "autorange": "reversed", "showgrid": False},
            "hovermode": "closest",
        },
        table=Table(
            ("worst layers", "SQNR, dB"),
            [(str(row["name"]), f"{row['sqnr_db']:.1f}") for row in worst[:WORST]],
        ),
        notes=_notes(found, rows),
        height=130 + ROW_HEIGHT * max(3, len(kinds)),
    )


def _notes(found: CheckWeightsResult, rows: list[Row]) -> tuple[str, ...]:
    notes = (
        ["of several modules in one place (experts), the worst is shown"]
        if any(re.search(r"\.experts\.\d+\.", str(row["name"])) for row in rows)
        else []
    )
    known = found.sqnr
    if known is not None and known.median_db is not None and known.floor_db is not None:
        notes.append(
            f"median {known.median_db:.1f} dB; a layer under {known.floor_db:.1f} dB "
            "would have failed the stage check_weights"
        )
    return tuple(notes)
