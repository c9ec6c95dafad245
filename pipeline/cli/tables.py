"""Prints results on standard output, as tables for people or JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from artifacts.gate_row import GateRow, gate_row, speed_row
from artifacts.written_numbers import format_megabytes
from pipeline.cli.terminal import open_console
from pipeline.core.errors import PrepareError
from pipeline.core.foreign.text import LONGEST_NAME, LONGEST_REASON, clip

if TYPE_CHECKING:
    from rich.console import Console

    from artifacts.run_record import RunReport, VariantReport
    from eval_gates.records import GateReport
    from pipeline.core.store import Store

COLOURS = {"pass": "green", "fail": "red", "undecided": "yellow", "error": "red", "skipped": "dim"}
WIDTH_WITHOUT_TERMINAL = 132


def console(width: int = WIDTH_WITHOUT_TERMINAL) -> Console:
    """Standard output; so wide, that tables have room, when it is not a terminal."""
    return open_console(width=None if sys.stdout.isatty() else width)


def print_json(value: Any) -> None:
    """One JSON value on standard output."""
    print(json.dumps(value, indent=1))


@contextmanager
def errors_as_json(wanted: bool) -> Iterator[None]:
    """What was asked for came to no run: an object that says so, where one is wanted."""
    from artifacts.run_record import SCHEMA_VERSION

    try:
        yield
    except PrepareError as error:
        if wanted:
            print_json({"schema_version": SCHEMA_VERSION, "run": None, "error": error.to_dict()})
        raise


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int = WIDTH_WITHOUT_TERMINAL,
) -> None:
    """A plain table; long cells are folded. `width` holds where there is no terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(clip(cell, LONGEST_REASON)) for cell in row))
    console(width).print(table)


def print_run(report: RunReport) -> None:
    """The verdict table of a run, why each variant got it, and what to look at next."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from artifacts.ending import attribution_lines, drafting_lines, serving_lines, verdict_word

    out = console()
    digest = f" ({report.checkpoint.digest[:12]})" if report.checkpoint else ""
    options = report.options
    named = [
        clip(str(each), LONGEST_NAME)
        for each in (options.checkpoint, options.policy, options.profile)
    ]
    table = Table(
        title=Text(f"{named[0]}{digest}, policy {named[1]}, profile {named[2]}"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("variant", "weights", "gate", "baseline", "candidate", "difference", "verdict"):
        right = heading in ("weights", "baseline", "candidate", "difference")
        table.add_column(
            heading, justify="right" if right else "left", no_wrap=heading in ("variant", "verdict")
        )
    for variant in report.variants:
        add_variant(table, variant)
    out.print(table)
    for variant in report.variants:
        word = verdict_word(variant)
        begun = Text(f"{variant.recipe}: {word}", style=COLOURS[variant.verdict])
        out.print(begun.append(f": {variant.reason}", style="default"))
        for gate in variant.gates:
            if gate.verdict != "pass" or gate.suspicious:
                out.print(Text(f"  {gate.suite}: {gate.reason}"))
        for speed in variant.speed:
            if speed.verdict != "pass":
                out.print(Text(f"  {speed.name}: {speed.reason}"))
    last = [*floor_lines(report), *speed_lines(report)]
    last += [*serving_lines(options), *drafting_lines(report)]
    last += attribution_lines(report)
    for line in [*last, last_line(report)]:
        out.print(Text(line))


def floor_lines(report: RunReport) -> list[str]:
    """What serving alone changes, suite by suite; the same baseline for all variants."""
    floors = {gate.suite: gate.floor for v in report.variants for gate in v.gates if gate.floor}
    return [
        f"{suite}: the baseline asked twice changed {floor.flips} of {floor.n} scores"
        for suite, floor in floors.items()
    ]


def speed_lines(report: RunReport) -> list[str]:
    """What is to be known of all speeds; that there are none, where variants were judged."""
    judged = [variant for variant in report.variants if variant.gates]
    if judged and not any(variant.speed for variant in judged):
        return ["speed: the policy claims nothing of it here"]
    notes = dict.fromkeys(each.note for v in judged for each in v.speed if each.note)
    return [f"speed: {note}" for note in notes]


def add_variant(table: Any, variant: VariantReport) -> None:
    """One row a gate; variant and size stand in the first."""
    from rich.text import Text

    size = format_megabytes(variant.weights_bytes, nothing="-" if variant.gates else "not made")
    rows = [gate_cells(gate) for gate in variant.gates]
    for speed in variant.speed:
        claim = speed_row(speed, 1)
        rows.append([f"{claim.what} ({claim.counted}){claim.unusual_tier}", *number_cells(claim)])
    if not rows:
        rows = [["-", "", "", "", variant.verdict]]
    for number, row in enumerate(rows):
        cells = [*((variant.recipe, size) if number == 0 else ("", "")), *row[:-1]]
        verdict = Text(row[-1], style=COLOURS[row[-1]])
        table.add_row(*(Text(clip(cell, LONGEST_NAME)) for cell in cells), verdict)
    table.add_section()


def gate_cells(gate: GateReport) -> list[str]:
    """Suite with how many questions, and how many of them it took; then the numbers."""
    row = gate_row(gate, 1)
    decided = gate.decided_at not in (None, gate.n)
    counted = f"decided at {gate.decided_at} of n={gate.n}" if decided else f"n={gate.n}"
    return [f"{row.what} ({counted}){row.unusual_tier}", *number_cells(row)]


def number_cells(row: GateRow) -> list[str]:
    """Baseline, candidate, difference with what it was compared with, and the verdict."""
    return [
        f"{row.baseline}{row.unit}" if row.baseline else "",
        f"{row.candidate}{row.unit}",
        f"{row.difference} ({row.describe_bound('> ')})",
        row.verdict,
    ]


def last_line(report: RunReport) -> str:
    """How much was done, and what to look at next."""
    from artifacts.ending import champion_of, next_command

    reused = sum(stage.status == "reused" for stage in report.stages)
    done = f"{len(report.stages)} stages, {reused} reused, {report.seconds:.0f} s. "
    could = champion_of(report) is None and report.kind == "model"
    return f"{done}{'Nothing was promoted. ' if could else ''}Next: {next_command(report)}"


def print_stages(report: RunReport, store: Store) -> None:
    """Every stage of a run with its time and the folder of its evidence."""
    rows = []
    for stage in report.stages:
        folder = store.stage_folder(stage.stage, stage.key) if stage.key else None
        place = str(folder) if folder and folder.is_dir() else "-"
        rows.append([stage.name, stage.variant, stage.status, f"{stage.seconds:.1f} s", place])
    print_table(["stage", "variant", "status", "time", "evidence"], rows)
