"""Annotations read back as GitHub's runner reads them."""

from __future__ import annotations

import re

import pytest
from ci_reports import RUNS, saying_no
from hypothesis import given
from hypothesis import strategies as st
from sample_reports import gate_report, run_report, variant_report

from artifacts.ci.annotations import MAX_MESSAGE_CHARACTERS, annotation_lines, command
from pipeline.core.untrusted.text import make_visible


def read(line: str) -> tuple[str, str, str]:
    """Level, title and message, as `ActionCommand.TryParseV2` of the runner finds them.

    The command ends at the first '::' after its beginning; properties are separated by commas.
    """
    found = re.fullmatch(r"::(\w+) title=([^:,]*)::(.*)", line)
    assert found is not None, line
    assert not set(line) & {"\r", "\n"}
    level, title, message = found.groups()
    for code, letter in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        title = title.replace(code, letter)
        if letter not in ":,":
            message = message.replace(code, letter)
    return level, title, message


def test_one_for_each_gate_that_did_not_pass_errors_first() -> None:
    assert [read(line) for line in annotation_lines(RUNS["fail"])] == [
        ("error", "fp8-dynamic: mmlu: fail", "lost 3 points, 100 % sure: too much"),
        ("warning", "fp8-dynamic: code: undecided", "needs more questions"),
        ("warning", "fp8-dynamic: rouge: fail (advisory)", "worse summaries"),
    ]


def test_none_for_what_passed_or_was_not_needed() -> None:
    assert annotation_lines(RUNS["promoted"]) == []
    assert annotation_lines(RUNS["not promoted"]) == []


@pytest.mark.parametrize("run", ["not made", "refused", "incoherent", "slow"])
def test_an_error_for_what_went_wrong(run: str) -> None:
    assert read(annotation_lines(RUNS[run])[0])[0] == "error"


def test_undecided_is_a_warning_though_it_blocks() -> None:
    assert {read(line)[0] for line in annotation_lines(RUNS["undecided"])} == {"warning"}


def test_a_gain_too_good_is_a_warning() -> None:
    report = run_report(variants=[variant_report(gates=[gate_report(suspicious=True)])])
    (line,) = annotation_lines(report)
    assert read(line)[:2] == ("warning", "fp8-dynamic: mmlu: suspicious")


def test_more_than_github_shows_are_counted() -> None:
    variants = [saying_no().model_copy(update={"recipe": f"v{number}"}) for number in range(25)]
    lines = annotation_lines(run_report(exit_code=4, variants=variants))
    read_back = [read(line) for line in lines]
    assert [level for level, _, _ in read_back] == ["error"] * 10 + ["warning"] * 10
    assert read_back[9][2] == "16 more: the run's summary lists them"
    assert read_back[19][2] == "41 more: the run's summary lists them"


@given(st.text(), st.text())
def test_any_text_comes_back_on_one_line(title: str, message: str) -> None:
    assert read(command("error", title, message)) == (
        "error",
        make_visible(title),
        make_visible(message),
    )


def test_a_long_reason_is_cut() -> None:
    message = read(command("error", "t", "x%" * MAX_MESSAGE_CHARACTERS))[2]
    assert len(message) == MAX_MESSAGE_CHARACTERS
    assert message.endswith("…")
