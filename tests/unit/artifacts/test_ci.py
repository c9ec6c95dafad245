"""JUnit, summary and outputs as their readers see them, with any text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from ci_reports import RUNS, saying_no
from hypothesis import example, given
from hypothesis import strategies as st
from junitparser import Failure
from junitparser.xunit2 import JUnitXml
from markdown_it import MarkdownIt
from sample_reports import failed_variant_report, gate_report, run_report, variant_report

from artifacts.ci import (
    LARGEST_BYTES,
    MAX_VALUE_CHARACTERS,
    junit_xml,
    markdown_summary,
    outputs,
)
from prepare.escape import junit_text

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
HOSTILE = "a|b <script>x</script> `c` *d* [e](http://f) &amp; \\ | $x$ #1\n\n# heading\n- item"
NAMES = ("verdict", "exit_code", "run", "passed", "champion")
NAMES += ("registry_name", "registry_version", "junit")


def suites(run: str) -> dict[str, Any]:
    return {suite.name: suite for suite in JUnitXml.fromstring(junit_xml(RUNS[run]))}


def outcomes(suite: Any) -> dict[str, tuple[str, str | None]]:
    return {
        case.name: (case.result[0]._tag, case.result[0].type) if case.result else ("passed", None)
        for case in suite
    }


FAILED = {
    "mmlu": ("failure", "fail"),
    "code": ("failure", "undecided"),
    "rouge": ("skipped", "fail"),
    "speed ratio.chat": ("passed", None),
}


@pytest.mark.parametrize(
    ("run", "suite", "expected"),
    [
        ("fail", "fp8-dynamic", FAILED),
        ("fail", "awq-w4a16", {"verdict": ("skipped", "skipped")}),
        ("undecided", "w8a8", {"mmlu": ("failure", "undecided"), "code": ("skipped", "undecided")}),
        ("undecided", "fp8-dynamic", {"verdict": ("failure", "undecided")}),
        ("babbling", "fp8-dynamic", {}),
        ("not made", "awq-w4a16", {"verdict": ("error", "error")}),
        ("refused", "prepare model", {"run": ("error", "error")}),
        ("slow", "fp8-dynamic", {"speed ratio.chat": ("failure", "fail")}),
    ],
)
def test_a_suite_a_variant_and_a_case_a_gate(
    run: str, suite: str, expected: dict[str, Any]
) -> None:
    found = outcomes(suites(run).get(suite, ()))
    assert expected.items() <= found.items()


@pytest.mark.parametrize("run", sorted(RUNS))
def test_counts_are_right_and_red_is_what_promoted_nothing(run: str) -> None:
    root = ET.fromstring(junit_xml(RUNS[run]))
    for attribute, path in (("failures", ".//failure"), ("errors", ".//error")):
        assert int(root.attrib[attribute]) == len(root.findall(path))
    red = int(root.attrib["failures"]) + int(root.attrib["errors"]) > 0
    assert red == (RUNS[run].exit_code != 0)


@given(st.text())
def test_any_reason_comes_back_from_junit(reason: str) -> None:
    gate = gate_report(verdict="fail", reason=reason)
    variants = [
        variant_report(verdict="fail", promoted=False, gates=[gate]),
        failed_variant_report(reason=reason),
    ]
    (suite, other) = JUnitXml.fromstring(junit_xml(run_report(exit_code=4, variants=variants)))
    case = next(iter(suite))
    assert isinstance(case.result[0], Failure)
    for each in (case, next(iter(other))):
        assert (each.result[0].text or "").startswith(junit_text(reason))


def test_a_time_of_another_kind_comes_back_from_junit() -> None:
    report = run_report(
        started="\x00\x1b[2J[[ATTACHMENT|/etc/passwd]]", variants=[variant_report()]
    )
    (suite,) = JUnitXml.fromstring(junit_xml(report))
    assert suite.timestamp == junit_text(report.started)


def parsed(text: str) -> list[Any]:
    return MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(text)


@given(TEXTS)
@example(HOSTILE)
def test_no_reason_breaks_out_of_its_line_in_markdown(text: str) -> None:
    plain = run_report(exit_code=1, variants=[failed_variant_report(reason="plain")])
    other = run_report(
        exit_code=1, variants=[failed_variant_report(reason=text, recipe=text or "x")]
    )
    kinds = [[token.type for token in parsed(markdown_summary(each))] for each in (plain, other)]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("limit", [-5, 10, 900, 5000, LARGEST_BYTES])
def test_a_summary_that_is_too_large_ends_at_a_line(limit: int) -> None:
    gate = gate_report(verdict="fail", reason="ä|long reason " * 500)
    gates = [gate.model_copy(update={"name": f"suite-{number}"}) for number in range(2000)]
    report = run_report(exit_code=4, variants=[saying_no().model_copy(update={"gates": gates})])
    text = markdown_summary(report, limit)
    assert len(text.encode()) <= max(0, limit)
    assert text == "" or text.endswith("\n")


def values(text: str) -> dict[str, str]:
    lines = text.split("\n")
    assert lines.pop() == ""
    assert all(re.match(r"[a-z_]+=", line) for line in lines)
    return dict(line.split("=", 1) for line in lines)  # type: ignore[misc]


@pytest.mark.parametrize("run", sorted(RUNS))
def test_all_outputs_are_there_in_every_run(run: str) -> None:
    found = values(outputs(RUNS[run], ""))
    assert tuple(found) == NAMES
    assert found["exit_code"] == str(RUNS[run].exit_code)
    assert (found["champion"] != "") == (run == "promoted")
    if run == "not promoted":
        assert found["passed"] == "fp8-dynamic,w8a8"


@given(TEXTS)
def test_no_output_makes_a_line_of_its_own(text: str) -> None:
    found = values(outputs(run_report(registered_name=text), text))
    assert tuple(found) == NAMES
    assert len(found["registry_name"]) <= MAX_VALUE_CHARACTERS
