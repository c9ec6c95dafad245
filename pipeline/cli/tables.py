"""Prints results on standard output, as tables for people or JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from pipeline.cli.terminal import open_console
from prepare.errors import from_dict
from prepare.escape import MAX_NAME_CHARACTERS, clip, log_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from artifacts.run_record import RunReport, VariantReport
    from prepare.store import Store

COLOURS = {"pass": "green", "fail": "red", "undecided": "yellow", "error": "red", "skipped": "dim"}
WIDTH_WITHOUT_TERMINAL = 132


def console(width: int = WIDTH_WITHOUT_TERMINAL) -> Console:
    """Return standard output's console, wide without a terminal."""
    return open_console(width=None if sys.stdout.isatty() else width)


def print_json(value: Any) -> None:
    """Print one JSON value."""
    print(json.dumps(value, indent=1))


def end(error: Mapping[str, Any] | None, code: int) -> NoReturn:
    """Print a run's error, if any, and exit."""
    if error is not None:
        print(f"error: {from_dict(error)}", file=sys.stderr)
    raise typer.Exit(code)


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int = WIDTH_WITHOUT_TERMINAL,
    title: str = "",
) -> None:
    """Print a table with folded cells."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(log_line(title)) if title else None, title_justify="left")
    table.box = box.SIMPLE_HEAD
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(log_line(cell)) for cell in row))
    console(width).print(table)


def print_run(report: RunReport, *, is_shown: bool = False) -> None:
    """Print a run's verdicts, reasons, and the next command."""
    from rich.text import Text

    from artifacts.run_outcome import SCREENED, screened_rows, side_lines

    out = console()
    if any(variant.gates for variant in report.variants):
        out.print(verdict_table(report))
    else:
        print_line(out, Text(title_of(report)))
    for variant in promoted_first(report):
        print_reasons(out, variant)
    for line in [*shown_lines(report), *speed_lines(report), *side_lines(report)]:
        print_line(out, Text(line))
    if report.screened:
        rows = screened_rows(report.screened)
        print_table(list(rows[0]), [list(row.values()) for row in rows], title=SCREENED)
    print_ending(report, is_shown=is_shown)


def print_ending(report: RunReport, *, is_shown: bool = False) -> None:
    """Print why the run failed, and its last lines."""
    from rich.text import Text

    if is_shown and report.error is not None:
        print_line(console(), Text(f"error: {from_dict(report.error)}"))
    for line in last_lines(report, is_shown=is_shown):
        print_line(console(), Text(line))


def print_line(out: Console, text: Text) -> None:
    """Print a line; a terminal's are broken between words, and paths stay whole to be copied."""
    places = []
    start = 0
    for word in re.finditer(r"\S+", text.plain) if sys.stdout.isatty() else ():
        if word.end() - start > out.width and word.start() > start:
            start = word.start()
            places.append(start)
    for line in text.divide(places):
        line.rstrip()
        out.print(line, soft_wrap=True)


def title_of(report: RunReport) -> str:
    """Describe the run in one line."""
    digest = f" ({report.checkpoint.digest[:12]})" if report.checkpoint else ""
    options = report.resolved
    named = {"policy": options.policy, "profile": options.profile}
    return ", ".join(
        [
            f"{clip(options.checkpoint, MAX_NAME_CHARACTERS)}{digest}",
            *(f"{key} {clip(name, MAX_NAME_CHARACTERS)}" for key, name in named.items() if name),
        ]
    )


def promoted_first(report: RunReport) -> list[VariantReport]:
    """Return the variants, the promoted one first."""
    return sorted(report.variants, key=lambda variant: not variant.promoted)


def verdict_table(report: RunReport) -> Table:
    """Return a row for each variant and one for each of its gates."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from artifacts.run_outcome import describe_weights

    table = Table(title=Text(title_of(report)), title_justify="left", box=box.SIMPLE_HEAD)
    headings = next(list(gate.cells()) for judged in report.variants for gate in judged.gates)
    for heading in headings:
        is_text = heading in ("gate", "verdict")
        table.add_column(
            heading,
            justify="left" if is_text else "right",
            no_wrap=heading != "gate",
        )
    for variant in promoted_first(report):
        weights = describe_weights(report, variant)
        name = clip(variant.recipe, MAX_NAME_CHARACTERS)
        table.add_row(Text(f"{name}, {weights}" if weights else name, style="bold"))
        for gate in variant.gates:
            verdict_style = COLOURS[gate.verdict] if gate.decides else "dim"
            cells = []
            for heading, cell in gate.cells(1).items():
                text = clip(cell, MAX_NAME_CHARACTERS)
                if heading == "gate":
                    text = f"  {text}"
                cells.append(Text(text, style=verdict_style if heading == "verdict" else ""))
            table.add_row(*cells)
    return table


def print_reasons(out: Console, variant: VariantReport) -> None:
    """Print the reason, and what a gate that could not decide needs."""
    from rich.text import Text

    from artifacts.run_outcome import verdict_word

    begun = Text(f"{variant.recipe}: {verdict_word(variant)}", style=COLOURS[variant.verdict])
    print_line(out, begun.append(f": {variant.reason}", style="default"))
    for gate in variant.gates:
        # A variant that has failed is not put under load.
        is_left_out = variant.verdict == "fail" and gate.estimate is None
        is_open = gate.verdict == "undecided" and gate.decides and not is_left_out
        if is_open or gate.suspicious:
            print_line(out, Text(f"  {gate.name}: {gate.reason}"))


def shown_lines(report: RunReport) -> list[str]:
    """Return which gates decide nothing."""
    names = dict.fromkeys(
        gate.name for variant in report.variants for gate in variant.gates if not gate.decides
    )
    return [f"shown only, decides nothing: {', '.join(names)}"] if names else []


def speed_lines(report: RunReport) -> list[str]:
    """Return notes on speeds."""
    judged = [variant for variant in report.variants if variant.gates]
    if judged and not any(variant.speed for variant in judged):
        return ["speed: the policy has no gate on it here"]
    speeds = [speed for variant in judged for speed in variant.speed if speed.estimate is not None]
    notes = dict.fromkeys(
        [f"{speed.name}: {speed.description}" for speed in speeds if speed.shows_little]
        + [f"speed: {speed.note}" for speed in speeds if speed.note]
    )
    return list(notes)


def last_lines(report: RunReport, *, is_shown: bool = False) -> list[str]:
    """Return the amount of work, and the next commands."""
    from artifacts.run_outcome import champion_of, headline, next_commands

    reused = sum(stage.status == "reused" for stage in report.stages)
    plural = "" if len(report.stages) == 1 else "s"
    done = f"{len(report.stages)} stage{plural}, {reused} reused, {report.seconds:.0f} s. "
    could = champion_of(report) is None and report.kind == "model" and report.status != "running"
    first, *others = next_commands(report, is_shown=is_shown)
    ended = ""
    if could and report.exit_code == 0:
        ended = f"{headline(report)}; this run does not promote. "
    elif could:
        ended = f"Nothing was promoted: {headline(report)}. "
    return [f"{done}{ended}Next: {first}", *(f"  or: {command}" for command in others)]


def print_stages(report: RunReport, store: Store, *, paths: bool = False) -> None:
    """Print a run's stages, with `paths` the evidence's folders.

    A folder in a cell would be folded.
    """
    rows = [
        [stage.name, stage.variant, stage.status, f"{stage.seconds:.1f} s"]
        for stage in report.stages
    ]
    if rows:
        print_table(["stage", "variant", "status", "time"], rows)
    # Stages of one variant are adjacent.
    if firsts := {line.partition(": ")[0]: line for line in reversed(report.running)}:
        print(f"running: {log_line('; '.join(reversed(firsts.values())))}")
    stages = [
        (stage, store.stage_folder(stage.stage, stage.key)) for stage in report.stages if stage.key
    ]
    kept = [(stage, folder) for stage, folder in stages if folder.is_dir()]
    if kept:
        print("evidence:" if paths else f"evidence: {len(kept)} folders; --paths names them")
    for stage, folder in kept if paths else ():
        print(f"  {log_line(stage.name)}, {log_line(stage.variant)}: {log_line(str(folder))}")
    print(f"logs: {store.root / 'runs' / report.run}")
