"""Graders run within limits, each call in its own process."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from prepare.errors import EvaluationDataError
from prepare.limited_call import CallError, call_limited, grade_all


def endless() -> None:
    while True:
        pass


def test_a_result_comes_back_as_json_has_it() -> None:
    here = os.getpid()
    value = {"a": [1, 2.5, None, "\udc80 é"]}
    assert call_limited(lambda: value) == value
    assert call_limited(os.getpid) != here


@pytest.mark.parametrize(
    "call",
    [
        endless,
        lambda: re.match("(a|a)*$", "a" * 60 + "!"),
        lambda: bytearray(2**33),
        lambda: [bytearray(2**20) for _ in range(2**13)],
        lambda: os._exit(0),
        lambda: os.kill(os.getpid(), 9),
        lambda: os.close(3) or os.closerange(0, 65_536),
        lambda: 10**10**10,
    ],
)
def test_a_call_without_an_end_is_ended(call: Any) -> None:
    started = time.process_time()
    with pytest.raises(CallError):
        call_limited(call, seconds=1, memory_bytes=2**28)
    assert time.process_time() - started < 1


def test_an_expected_error_is_raised_here() -> None:
    def fails() -> None:
        raise EvaluationDataError("no", where="line 3", hint="fix it")

    with pytest.raises(EvaluationDataError) as caught:
        call_limited(fails)
    assert (caught.value.where, caught.value.hint) == ("line 3", "fix it")


def test_another_error_is_named() -> None:
    with pytest.raises(CallError, match="ZeroDivisionError"):
        call_limited(lambda: 1 / 0)


def test_a_missing_package_is_no_fault_of_the_call() -> None:
    """Else every answer of a suite would score nothing."""
    for run in (call_limited, lambda call: grade_all([call], 0.0)):
        with pytest.raises(ImportError, match="not_installed"):
            run(lambda: __import__("not_installed"))


def test_a_package_of_another_version_is_no_fault_of_the_call() -> None:
    """It has the module, and lacks a name in it: an answer would score 0."""

    def call() -> None:
        from json import no_such_name  # type: ignore[attr-defined] # noqa: F401

    with pytest.raises(ImportError, match="no_such_name"):
        grade_all([call, call], None)


def test_one_of_many_that_fails_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepare.limited_call.CPU_SECONDS", 1.0)
    assert grade_all([lambda: 1.0, endless, lambda: 3.0], 0.0) == [1.0, 0.0, 3.0]  # type: ignore[list-item]


def test_nothing_of_the_call_is_left_here() -> None:
    kept: list[int] = []
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(5):
        call_limited(lambda: kept.append(1))
    assert kept == []
    assert len([*Path("/proc/self/fd").iterdir()]) == before
