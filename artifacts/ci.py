"""A run's results for CI: JUnit XML, a Markdown summary, and outputs.

JUnit's `failure` prevents promotion; `error` is an unfinished run or variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from artifacts.run_outcome import (
    champion_of,
    describe_weights,
    headline,
    list_passed,
    next_steps,
    verdict_of,
)
from artifacts.run_record import RunReport, VariantReport
from eval_gates.gate_result import GateResult
from prepare.errors import from_dict
from prepare.escape import (
    MAX_REASON_CHARACTERS,
    junit_text,
    markdown,
    markdown_code,
    markdown_with_code,
    output_value,
)
from prepare.own_command import own_command
from prepare.private_files import write_atomically

SUMMARY = "GITHUB_STEP_SUMMARY"
OUTPUTS = "GITHUB_OUTPUT"
LARGEST_BYTES = 1 << 20  # GitHub's limit
MAX_VALUE_CHARACTERS = 400  # GitLab takes 5 KiB of a dotenv report in all
WHOLE_VARIANT = "verdict"  # a case that no gate explains: not made, broken, not needed


def cases_of(report: RunReport) -> list[tuple[str, GateResult]]:
    """Return every gate with its variant, the run's error first."""
    cases = []
    if report.error is not None:
        error = str(from_dict(report.error))
        kind = report.error.get("kind", "")
        whole = GateResult(name="run", metric=kind, verdict="error", reason=error)
        cases.append((f"prepare {report.kind}", whole))
    return cases + [
        (variant.recipe, gate) for variant in report.variants for gate in _gates(variant)
    ]


def _gates(variant: VariantReport) -> list[GateResult]:
    gates: list[GateResult] = [*variant.gates]
    is_explained = any(gate.blocks and gate.verdict == variant.verdict for gate in gates)
    if is_explained or (variant.verdict == "pass" and gates):
        return gates
    why = variant.reason
    verdict = variant.verdict
    return [GateResult(name=WHOLE_VARIANT, verdict=verdict, reason=why), *gates]


def junit_xml(report: RunReport) -> bytes:
    """Return a suite per variant with a case per gate."""
    from junitparser.xunit2 import JUnitXml, TestSuite

    xml = JUnitXml(f"prepare {report.kind}")
    for name, cases in groupby(cases_of(report), key=lambda case: case[0]):
        suite = TestSuite(junit_text(name))
        suite.timestamp = junit_text(report.started)
        for _, gate in cases:
            suite.append(_case(name, gate))
        xml.add_testsuite(suite)
    xml.update_statistics()
    for added in xml:
        seconds = [stage.seconds for stage in report.stages if stage.variant == added.name]
        added.time = round(sum(seconds), 3)
    xml.time = round(report.seconds, 3)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + bytes(xml.tostring())


def _case(variant: str, gate: GateResult) -> object:
    from junitparser import Error, Failure, Skipped
    from junitparser.xunit2 import TestCase

    case = TestCase(junit_text(gate.name), f"prepare.{junit_text(variant)}")
    figures = ("metric", "tier", "baseline", "candidate", "estimate", "bound", "threshold")
    facts = {name: getattr(gate, name) for name in figures} | gate.details
    reason = junit_text(gate.reason)
    shown = {name: junit_text(str(value)) for name, value in facts.items() if value is not None}
    text = "\n".join([reason, *(f"{name}: {value}" for name, value in shown.items())])
    if gate.verdict == "pass":
        case.system_out = text
        return case
    kind = Error if gate.verdict == "error" else Failure if gate.blocks else Skipped
    harmless = kind is Skipped and gate.verdict != "skipped"
    start = f"{gate.verdict}, {gate.tier}, does not block: " if harmless else ""
    result = kind(start + reason.partition("\n")[0], gate.verdict)
    result.text = text
    case.append(result)
    return case


def markdown_summary(report: RunReport, limit: int = LARGEST_BYTES) -> str:
    """Return at most `limit` bytes."""
    text = "".join(_blocks(report)).encode()
    if len(text) <= limit:
        return text.decode()
    command = markdown_code(own_command("runs", report.run))
    note = f"\n\n*Cut: `{command}` has everything.*\n".encode()
    kept = text[: max(0, limit - len(note))].rpartition(b"\n")[0]
    return (kept + note).decode() if kept else ""


def _blocks(report: RunReport) -> Iterator[str]:
    said = markdown(headline(report), MAX_REASON_CHARACTERS)
    yield f"## prepare: {verdict_of(report)}\n\n**{said}**\n\n"
    options = report.resolved
    named = {"policy": options.policy, "profile": options.profile}
    parts = [options.checkpoint, *(f"{key} {name}" for key, name in named.items() if name)]
    yield ", ".join(markdown(part) for part in parts if part)
    yield f", run `{markdown_code(report.run)}`, exit code {report.exit_code}\n\n"
    for step in next_steps(report):
        yield f"- {markdown_with_code(step)}\n"
    rows = [(variant, gate.cells()) for variant in report.variants for gate in _gates(variant)]
    if rows:
        headings = ["variant", "weights", *rows[0][1]]
        yield f"\n| {' | '.join(headings)} |\n|{' --- |' * len(headings)}\n"
    for variant, cells in rows:
        row = [variant.recipe, describe_weights(report, variant), *cells.values()]
        yield f"| {' | '.join(map(markdown, row))} |\n"
    blocking = [(name, gate) for name, gate in cases_of(report) if gate.verdict != "pass"]
    for title, wanted in (("What blocks it", True), ("What does not block", False)):
        alike = [(name, gate) for name, gate in blocking if gate.blocks == wanted]
        if alike:
            yield f"\n### {title}\n\n"
        for name, gate in alike:
            why = markdown(gate.reason, MAX_REASON_CHARACTERS)
            yield f"- **{markdown(name)}, {markdown(gate.title)}**: {gate.verdict}: {why}\n"


def outputs(report: RunReport, junit: str) -> str:
    """Return `name=value` lines for $GITHUB_OUTPUT and GitLab's dotenv."""
    champion = champion_of(report)
    values = {
        "verdict": verdict_of(report),
        "exit_code": str(report.exit_code),
        "run": report.run,
        "passed": ",".join(list_passed(report)),
        "champion": champion.recipe if champion else "",
        "registry_name": report.registered_name or "",
        "registry_version": (champion.registry_version if champion else None) or "",
        "junit": junit,
    }
    return "".join(f"{k}={output_value(v, MAX_VALUE_CHARACTERS)}\n" for k, v in values.items())


def publish(
    report: RunReport,
    environ: Mapping[str, str],
    junit: Path | None,
    outputs_file: Path | None,
    say: Callable[[str], None],
) -> None:
    """Write the named reports, and those of the CI system; write errors change no verdict."""
    written = ""
    if junit is not None:
        with _report_failure(junit, say):
            junit.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(junit, junit_xml(report).decode("utf-8"), is_private=False)
            written = str(junit)
            say(f"JUnit report: {junit}")
    if summary := environ.get(SUMMARY):
        with _report_failure(Path(summary), say):
            # An earlier command of the same step may have used some of the limit.
            taken = Path(summary).stat().st_size if Path(summary).exists() else 0
            _append(Path(summary), markdown_summary(report, LARGEST_BYTES - taken))
    if file := outputs_file or environ.get(OUTPUTS):
        with _report_failure(Path(file), say):
            _append(Path(file), outputs(report, written))


@contextmanager
def _report_failure(file: Path, say: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        say(f"warning: {file} could not be written: {error.strerror or error}")


def _append(file: Path, text: str) -> None:
    with file.open("a", encoding="utf-8") as open_file:
        open_file.write(text)
