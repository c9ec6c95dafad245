"""What later steps read: one value a line, all names always."""

from __future__ import annotations

import re

import pytest
from ci_reports import RUNS
from hypothesis import given
from hypothesis import strategies as st
from sample_reports import run_report

from artifacts.ci.outputs import MAX_VALUE_CHARACTERS, outputs

NAMES = [
    "verdict",
    "exit_code",
    "run",
    "passed",
    "champion",
    "registry_name",
    "registry_version",
    "junit",
]


def values(text: str) -> dict[str, str]:
    """As GitHub reads values of one line, and GitLab a dotenv report: the first '=' parts them."""
    lines = text.split("\n")
    assert lines.pop() == ""
    assert all(re.match(r"[a-z_]+=", line) for line in lines)
    return dict(line.split("=", 1) for line in lines)  # type: ignore[misc]


def test_the_values_of_a_promotion() -> None:
    assert values(outputs(RUNS["promoted"], "/runs/junit.xml")) == {
        "verdict": "pass",
        "exit_code": "0",
        "run": "20261121-100000-000001",
        "passed": "fp8-dynamic",
        "champion": "fp8-dynamic",
        "registry_name": "smollm2-135m",
        "registry_version": "1",
        "junit": "/runs/junit.xml",
    }


@pytest.mark.parametrize("run", sorted(RUNS))
def test_all_names_are_there_in_every_run(run: str) -> None:
    found = values(outputs(RUNS[run], ""))
    assert list(found) == NAMES
    assert found["exit_code"] == str(RUNS[run].exit_code)
    assert (found["champion"] != "") == (run == "promoted")


def test_who_passed_without_a_promotion() -> None:
    found = values(outputs(RUNS["not promoted"], ""))
    assert (found["passed"], found["champion"]) == ("fp8-dynamic,w8a8", "")


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_no_value_makes_a_line_of_its_own(text: str) -> None:
    found = values(outputs(run_report(registered_name=text), text))
    assert list(found) == NAMES
    assert len(found["registry_name"]) <= MAX_VALUE_CHARACTERS
    if text.isprintable() and len(text) <= MAX_VALUE_CHARACTERS:
        assert found["registry_name"] == found["junit"] == text
