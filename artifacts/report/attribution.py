"""Table of the losses by weights and by KV cache, per suite."""

from __future__ import annotations

from artifacts.number_format import format_points
from artifacts.report.figure import Table
from artifacts.run_record import VariantReport
from eval_gates.attribution import Effect


def attribution_table(variant: VariantReport) -> Table | None:
    """Return changes of the mean score in points, with bounds; None without `--ablate`."""
    if not variant.ablation:
        return None
    return Table(
        ("suite", "questions", "weights alone", "KV cache alone", "both", "beyond their sum"),
        [
            (
                each.suite,
                str(each.n),
                *map(_cell, (each.weights, each.kv_cache, each.both, each.interaction)),
            )
            for each in variant.ablation
        ],
    )


def _cell(effect: Effect) -> str:
    bounds = f"{format_points(effect.lower, 1)} to {format_points(effect.upper, 1)}"
    return f"{format_points(effect.difference, 1)} ({bounds})"
