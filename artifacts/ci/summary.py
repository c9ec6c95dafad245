"""A run as Markdown for a job's page: verdict, next step, table, reasons.

GitHub refuses more than 1 MiB, so a longer summary ends early, with a note.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from artifacts.ci.case import Case, cases_of_run, show_tier
from artifacts.gate_row import GateRow, claim_rows, gate_row
from artifacts.run_outcome import (
    attribution_lines,
    baseline_lines,
    describe_weights,
    drafting_lines,
    headline,
    next_steps,
    serving_lines,
    verdict_of,
)
from artifacts.run_record import RunReport, VariantReport
from eval_gates.gate_report import GateReport
from pipeline.core.untrusted.text import (
    MAX_REASON_CHARACTERS,
    markdown,
    markdown_code,
    markdown_with_code,
)

LARGEST_BYTES = 1 << 20


def markdown_summary(report: RunReport, limit: int = LARGEST_BYTES) -> str:
    """Return Markdown of less than `limit` bytes in UTF-8, or '' if no line fits."""
    left_out = (
        "\n*More was left out here, since GitHub takes 1 MiB: "
        f"`prepare runs show {markdown_code(report.run)}` has everything.*\n"
    )
    kept: list[str] = []
    room = limit - 1 - len(left_out.encode())
    for block in blocks(report):
        size = len(block.encode())
        if size > room:
            return "".join(kept) + left_out if kept else ""
        kept.append(block)
        room -= size
    return "".join(kept)


def blocks(report: RunReport) -> Iterator[str]:
    """Yield pieces of complete lines, the most important first."""
    said = markdown(headline(report), MAX_REASON_CHARACTERS)
    yield f"## prepare: {verdict_of(report)}\n\n**{said}**\n\n"
    yield f"{facts(report)}\n\n### What to do next\n\n"
    for step in next_steps(report):
        yield f"- {markdown_with_code(step)}\n"
    yield from table(report)
    told = (
        *baseline_lines(report),
        *serving_lines(report.options),
        *drafting_lines(report),
        *attribution_lines(report),
    )
    for line in told:
        yield f"\n{markdown(line[0].upper() + line[1:], MAX_REASON_CHARACTERS)}\n"
    yield from reasons(report)


def facts(report: RunReport) -> str:
    """Return one line on what was run."""
    options = report.options
    parts = [markdown(options.checkpoint or "")]
    if report.checkpoint is not None:
        parts[0] += f" ({report.checkpoint.digest[:12]})"
    named = {"policy": options.policy, "profile": options.profile}
    parts += [f"{key} {markdown(name)}" for key, name in named.items() if name is not None]
    if report.run:
        parts.append(f"run `{markdown_code(report.run)}`")
    parts += [f"exit code {report.exit_code}", f"{report.seconds:.0f} s"]
    return ", ".join(part for part in parts if part)


def table(report: RunReport) -> Iterator[str]:
    """Yield the table: a row per variant, a column per gate."""
    if not report.variants:
        return
    suites = list(dict.fromkeys(gate.suite for v in report.variants for gate in v.gates))
    claims = [row.what for v in report.variants for row in claim_rows(v, 1)]
    columns = [*suites, *dict.fromkeys(claims)]
    yield "\n" + row(["variant", "verdict", "weights", *map(markdown, columns)])
    yield row(["---"] * (3 + len(columns)))
    for variant in report.variants:
        cells = {gate.suite: gate_cell(gate) for gate in variant.gates}
        cells |= {each.what: cell(each, each.difference) for each in claim_rows(variant, 1)}
        yield row(
            [
                markdown(variant.recipe),
                variant_cell(variant),
                describe_weights(report, variant),
                *(cells.get(column, "-") for column in columns),
            ]
        )


def row(cells: Iterable[str]) -> str:
    """Return one row of a table."""
    return f"| {' | '.join(cells)} |\n"


def variant_cell(variant: VariantReport) -> str:
    """Return the verdict and the registered version."""
    version = markdown(variant.registry_version or "")
    if variant.promoted:
        return f"**promoted**, version {version}"
    return (
        f"{emphasize(variant.verdict)}, registered as version {version}"
        if version
        else emphasize(variant.verdict)
    )


def gate_cell(gate: GateReport) -> str:
    """Return the verdict and the difference with its bound and margin, in points."""
    row = gate_row(gate)
    return f"{cell(row, f'{row.difference} points', 'lower bound ')}, n={gate.n:,}"


def cell(row: GateRow, difference: str, lower: str = "") -> str:
    """Return the verdict and the difference, with its bound."""
    held = markdown(row.describe_bound(lower))
    return f"{emphasize(row.verdict)}{show_tier(row.tier)}: {difference} ({held})"


def emphasize(verdict: str) -> str:
    """Emphasize a verdict unless it is a pass."""
    return verdict if verdict in ("pass", "skipped") else f"**{verdict}**"


def reasons(report: RunReport) -> Iterator[str]:
    """Yield why each case did not pass, blocking ones first."""
    cases = [c for c in cases_of_run(report) if c.outcome != "pass" or c.suspicious]
    for title, blocking in (("What blocks it", True), ("What does not block", False)):
        found = [case for case in cases if case.blocks == blocking]
        if found:
            yield f"\n### {title}\n\n"
        for case in found:
            yield reason(case)


def reason(case: Case) -> str:
    """Return one case as a list item."""
    name = f"{markdown(case.variant)}, {markdown(case.name)}"
    why = markdown(case.reason, MAX_REASON_CHARACTERS)
    return f"- **{name}**{show_tier(case.tier)}: {case.word}: {why}\n"
