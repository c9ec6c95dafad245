"""JUnit XML of a run: a suite per variant, a case per gate, the figures as properties.

`failure` prevents promotion: a failed gate (type `fail`) or an undecided critical gate (type
`undecided`). `error`: a variant could not be made or served, or the run did not finish. `skipped`
has no effect: a failed advisory gate, or an undecided gate that is not critical.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from artifacts.ci.case import Case, cases_of_run, command_of
from artifacts.run_outcome import verdict_of
from artifacts.run_record import RunReport, VariantReport
from pipeline.core.untrusted.text import junit_text

if TYPE_CHECKING:
    from junitparser.xunit2 import TestCase, TestSuite


def junit_xml(report: RunReport) -> bytes:
    """Return the run as JUnit XML in UTF-8 (xunit2, whose cases have properties)."""
    from junitparser.xunit2 import JUnitXml

    xml = JUnitXml(command_of(report))
    by_name = {variant.recipe: variant for variant in report.variants}
    for name, cases in groupby(cases_of_run(report), key=lambda case: case.variant):
        suite = suite_of(name, list(cases), report)
        if name in by_name:
            describe(suite, by_name[name])
        xml.add_testsuite(suite)
    xml.update_statistics()
    # The library adds up the cases' times, and gates have none of their own.
    for added in xml:
        added.time = variant_seconds(report, added.name)
    xml.time = round(report.seconds, 3)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + bytes(xml.tostring())


def suite_of(name: str, cases: list[Case], report: RunReport) -> TestSuite:
    """Return one variant's cases."""
    from junitparser.xunit2 import TestSuite

    suite = TestSuite(junit_text(name))
    suite.timestamp = report.started
    suite.add_property("run", report.run)
    suite.add_property("run_verdict", verdict_of(report))
    if report.checkpoint is not None:
        suite.add_property("checkpoint", junit_text(report.checkpoint.ref))
        suite.add_property("checkpoint_digest", report.checkpoint.digest)
    for case in cases:
        suite.append(case_of(case))
    return suite


def describe(suite: TestSuite, variant: VariantReport) -> None:
    """Add the variant's outcome as properties of its suite."""
    suite.add_property("verdict", variant.verdict)
    suite.add_property("reason", junit_text(variant.reason))
    suite.add_property("promoted", str(variant.promoted).lower())
    for name in ("p_value", "weights_bytes", "registry_version"):
        value = getattr(variant, name)
        if value is not None:
            suite.add_property(name, junit_text(str(value)))


def case_of(case: Case) -> TestCase:
    """Return one gate with its figures and outcome."""
    from junitparser import Error, Failure, Skipped
    from junitparser.xunit2 import TestCase

    made = TestCase(junit_text(case.name), f"prepare.{junit_text(case.variant)}")
    for name, value in case.facts.items():
        made.add_property(name, junit_text(value))
    reason = junit_text(case.reason)
    first_line = reason.partition("\n")[0]
    if case.outcome == "pass":
        if case.suspicious:
            made.add_property("suspicious", "true")
        made.system_out = reason
        return made
    kind = Error if case.outcome == "error" else Failure if case.blocks else Skipped
    harmless = f"{case.outcome}, {case.tier}, does not block: "
    shown = harmless if kind is Skipped and case.outcome != "skipped" else ""
    result = kind(f"{shown}{first_line}", case.outcome)
    # Readers show the text and not the figures, and those are what one wants to see.
    result.text = "\n".join(
        [reason, *(f"{name}: {junit_text(v)}" for name, v in case.facts.items())]
    )
    made.append(result)
    return made


def variant_seconds(report: RunReport, variant: str) -> float:
    """Return the wall time of the variant's stages, or of the run for the run's case."""
    if variant == command_of(report):
        return round(report.seconds, 3)
    return round(sum(stage.seconds for stage in report.stages if stage.variant == variant), 3)
