"""A run as Markdown for a job's page: the verdict, what to do next, the table, then the reasons.

GitHub takes 1 MiB from a step and refuses the whole summary when there is more, so what does not
fit is left out from the end, and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from artifacts.ci.case import THROUGHPUT, Case, cases_of_run, unusual
from artifacts.ending import headline, next_steps, verdict_of
from artifacts.written_numbers import in_points, megabytes, per_cent
from eval_gates.records import GateReport, ThroughputReport
from pipeline.records import RunReport, VariantReport

LARGEST_BYTES = 1 << 20
LONGEST_REASON = 1000
LONGEST_WORD = 200
"""Characters of a name, a path or a cell."""
MARKDOWN = re.compile(r"[\\`*_\[\]<>|~#&$!]")


def markdown_summary(report: RunReport, limit: int = LARGEST_BYTES) -> str:
    """The run as Markdown of less than `limit` bytes in UTF-8; "" where not even a line fits."""
    left_out = (
        "\n*More was left out here, for GitHub takes 1 MiB: "
        f"`prepare runs show {code(report.run)}` has everything.*\n"
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
    """The summary in pieces that can be left out from the end, each whole lines."""
    yield f"## prepare: {verdict_of(report)}\n\n**{escaped(headline(report), LONGEST_REASON)}**\n\n"
    yield f"{facts(report)}\n\n### What to do next\n\n"
    for step in next_steps(report):
        yield f"- {with_code(clipped(one_line(step), LONGEST_REASON))}\n"
    yield from table(report)
    yield from reasons(report)


def facts(report: RunReport) -> str:
    """What was run, in one line."""
    command = report.command
    parts = [escaped(str(command.get("checkpoint", "")))]
    if report.checkpoint is not None:
        parts[0] += f" ({report.checkpoint.digest[:12]})"
    parts += [
        f"{key} {escaped(str(command[key]))}" for key in ("policy", "profile") if key in command
    ]
    if report.run:
        parts.append(f"run `{code(report.run)}`")
    parts += [f"exit code {report.exit_code}", f"{report.seconds:.0f} s"]
    return ", ".join(part for part in parts if part)


def table(report: RunReport) -> Iterator[str]:
    """Variants down, gates across."""
    if not report.variants:
        return
    suites = list(dict.fromkeys(gate.suite for v in report.variants for gate in v.gates))
    columns = [*suites, *([THROUGHPUT] if any(v.throughput for v in report.variants) else [])]
    yield "\n" + row(["variant", "verdict", "weights", *map(escaped, columns)])
    yield row(["---"] * (3 + len(columns)))
    for variant in report.variants:
        cells = {gate.suite: gate_cell(gate) for gate in variant.gates}
        if variant.throughput is not None:
            cells[THROUGHPUT] = throughput_cell(variant.throughput)
        yield row(
            [
                escaped(variant.recipe),
                variant_cell(variant),
                megabytes(variant.weights_bytes, nothing="-" if variant.gates else "not made"),
                *(cells.get(column, "-") for column in columns),
            ]
        )


def row(cells: Iterable[str]) -> str:
    """One row of a table."""
    return f"| {' | '.join(cells)} |\n"


def variant_cell(variant: VariantReport) -> str:
    """The verdict, and what the registry has of it."""
    version = escaped(variant.registry_version or "")
    if variant.promoted:
        return f"**promoted**, version {version}"
    return (
        f"{loud(variant.verdict)}, registered as version {version}"
        if version
        else loud(variant.verdict)
    )


def gate_cell(gate: GateReport) -> str:
    """The verdict and the difference with its bound and margin, in points."""
    points = f"{in_points(gate.difference)} points"
    if gate.threshold < 0:
        margin = f"lower bound {in_points(gate.bound)}, margin {100 * gate.threshold:+g}"
    else:
        recovery = per_cent(gate.recovery, 1, nothing="nothing")
        margin = f"{recovery} recovered, margin {escaped(gate.margin)}"
    return f"{loud(gate.verdict)}{unusual(gate.tier)}: {points} ({margin}), n={gate.n:,}"


def throughput_cell(throughput: ThroughputReport) -> str:
    """The verdict and the ratio with its floor."""
    ratio = f"x {throughput.ratio:.2f} (at least {throughput.minimum_ratio:g})"
    return f"{loud(throughput.verdict)}{unusual(throughput.tier)}: {ratio}"


def loud(verdict: str) -> str:
    """What is not a pass stands out."""
    return verdict if verdict in ("pass", "skipped") else f"**{verdict}**"


def reasons(report: RunReport) -> Iterator[str]:
    """Why each case did not pass, those that block first."""
    cases = [c for c in cases_of_run(report) if c.outcome != "pass" or c.suspicious]
    for title, blocking in (("What is in the way", True), ("What does not block", False)):
        found = [case for case in cases if case.blocks == blocking]
        if found:
            yield f"\n### {title}\n\n"
        for case in found:
            yield reason(case)


def reason(case: Case) -> str:
    """One case in a line of a list."""
    name = f"{escaped(case.variant)}, {escaped(case.name)}"
    return (
        f"- **{name}**{unusual(case.tier)}: {case.word}: {escaped(case.reason, LONGEST_REASON)}\n"
    )


def escaped(text: str, longest: int = LONGEST_WORD) -> str:
    """Text as Markdown that shows it as it is, on one line, also inside of a table's cell."""
    return MARKDOWN.sub(r"\\\g<0>", clipped(one_line(text), longest))


def with_code(text: str) -> str:
    """Text on one line whose parts between backticks are commands, the rest as it is."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one without its other, so it marks nothing
        return MARKDOWN.sub(r"\\\g<0>", text)
    return "`".join(
        code(part) if number % 2 else MARKDOWN.sub(r"\\\g<0>", part)
        for number, part in enumerate(parts)
    )


def code(text: str) -> str:
    """Text that may stand between backticks."""
    return clipped(one_line(text), LONGEST_WORD).replace("`", "'").replace("|", "/")


def one_line(text: str) -> str:
    """Blanks and line ends run together; other control characters are no text."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(shown.split())


def clipped(text: str, longest: int) -> str:
    """The beginning of a text, marked where there is more."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
