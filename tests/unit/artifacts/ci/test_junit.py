"""The JUnit file as readers see it: parsed back, with any text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest
from ci_reports import RUNS
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Failure, Skipped
from junitparser.xunit2 import JUnitXml
from sample_reports import failed_variant_report, gate_report, run_report, variant_report

from artifacts.ci.junit import junit_xml
from pipeline.core.untrusted.text import junit_text


def suites(run: str) -> dict[str, Any]:
    """The suites of a run by name, read by the library."""
    return {suite.name: suite for suite in JUnitXml.fromstring(junit_xml(RUNS[run]))}


def outcomes(suite: Any) -> dict[str, tuple[str, str | None]]:
    """Each case's element that states how it ended, and that element's type."""
    return {
        case.name: (case.result[0]._tag, case.result[0].type) if case.result else ("passed", None)
        for case in suite
    }


def properties(element: Any) -> dict[str, str]:
    return {each.name: each.value for each in element.properties()}


def test_a_suite_a_variant_and_a_case_a_gate() -> None:
    found = suites("fail")
    assert list(found) == ["fp8-dynamic", "awq-w4a16"]
    assert outcomes(found["fp8-dynamic"]) == {
        "mmlu": ("failure", "fail"),
        "code": ("failure", "undecided"),
        "rouge": ("skipped", "fail"),
        "speed ratio.chat": ("passed", None),
    }
    assert outcomes(found["awq-w4a16"]) == {"verdict": ("skipped", "skipped")}
    assert (found["fp8-dynamic"].failures, found["fp8-dynamic"].skipped) == (2, 1)


def test_undecided_fails_only_where_it_blocks() -> None:
    found = suites("undecided")
    assert outcomes(found["w8a8"]) == {
        "mmlu": ("failure", "undecided"),
        "code": ("skipped", "undecided"),
        "speed ratio.chat": ("passed", None),
    }
    assert outcomes(found["fp8-dynamic"])["verdict"] == ("failure", "undecided")


def test_an_error_is_no_failure() -> None:
    found = suites("not made")
    assert outcomes(found["awq-w4a16"]) == {"verdict": ("error", "error")}
    assert (found["awq-w4a16"].errors, found["awq-w4a16"].failures) == (1, 0)
    (case,) = suites("refused")["prepare model"]
    assert case.result[0]._tag == "error"
    assert case.result[0].message == "there is no such folder"
    assert "hint:  name a folder" in case.result[0].text


def test_the_figures_are_properties_of_the_case() -> None:
    (gate, load) = suites("promoted")["fp8-dynamic"]
    found = properties(gate)
    assert {name: found[name] for name in ("measured", "bound", "margin", "n", "p_value")} == {
        "measured": "0.6498",
        "bound": "-0.0043",
        "margin": "1 point",
        "n": "3511",
        "p_value": "0.02",
    }
    assert properties(load)["measured"] == "1.5"
    suite = properties(suites("promoted")["fp8-dynamic"])
    assert suite["verdict"] == "pass"
    assert suite["run"] == "20261121-100000-000001"
    assert (suite["promoted"], suite["registry_version"]) == ("true", "1")


def test_the_text_of_a_failure_has_the_figures_that_readers_show() -> None:
    case = next(iter(suites("fail")["fp8-dynamic"]))
    (failure,) = case.result
    assert failure.message == "lost 3 points, 100 % sure: too much"
    assert "bound: -0.0043\n" in failure.text
    rouge = next(case for case in suites("fail")["fp8-dynamic"] if case.name == "rouge")
    assert rouge.result[0].message == "fail, advisory, does not block: worse summaries"


def test_times_are_those_of_the_stages() -> None:
    root = ET.fromstring(junit_xml(RUNS["promoted"]))
    assert root.get("time") == "372.4"
    assert [suite.get("time") for suite in root] == ["2.5"]


@pytest.mark.parametrize("run", sorted(RUNS))
def test_counts_are_right_in_every_run(run: str) -> None:
    root = ET.fromstring(junit_xml(RUNS[run]))
    assert root.tag == "testsuites"
    for attribute, path in (
        ("tests", ".//testcase"),
        ("failures", ".//failure"),
        ("errors", ".//error"),
    ):
        assert int(root.attrib[attribute]) == len(root.findall(path))
        for suite in root:
            assert int(suite.attrib[attribute]) == len(suite.findall(path))
    # What promoted nothing is red, and only that.
    red = int(root.attrib["failures"]) + int(root.attrib["errors"]) > 0
    assert red == (RUNS[run].exit_code != 0)


def texts(element: ET.Element) -> Iterator[str]:
    for each in element.iter():
        yield each.text or ""
        yield from each.attrib.values()


@given(st.text())
def test_any_reason_comes_back(reason: str) -> None:
    report = run_report(
        exit_code=4,
        variants=[
            variant_report(
                verdict="fail",
                promoted=False,
                gates=[gate_report(verdict="fail", reason=reason, margin=reason)],
            ),
            failed_variant_report(reason=reason),
        ],
    )
    (suite, other) = JUnitXml.fromstring(junit_xml(report))
    case = next(iter(suite))
    assert case.result == [case.result[0]]
    assert isinstance(case.result[0], Failure)
    assert case.result[0].text.startswith(junit_text(reason))
    assert properties(case)["margin"] == junit_text(reason)
    assert (next(iter(other)).result[0].text or "") == junit_text(reason)


@pytest.mark.parametrize("bad", ["\x00", "\x1b[31m", "\x0b", "\ufffe", "\ud800", "a\r\nb"])
def test_what_xml_cannot_say_is_replaced(bad: str) -> None:
    shown = junit_text(bad)
    ET.fromstring(f"<a>{shown}</a>")
    assert shown == ("a\nb" if "\r" in bad else "\ufffd" + bad[1:])


def test_a_gain_too_good_is_marked_and_passes() -> None:
    report = run_report(variants=[variant_report(gates=[gate_report(suspicious=True)])])
    (suite,) = JUnitXml.fromstring(junit_xml(report))
    case = next(iter(suite))
    assert case.is_passed
    assert properties(case)["suspicious"] == "true"
    assert not any(isinstance(each, Skipped) for each in case.result)
    assert "the drop is below the margin" in texts(ET.fromstring(junit_xml(report)))
