"""Errors: every class crosses a process boundary as itself; exit codes are as documented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline.core.errors
from pipeline.core.errors import (
    MAX_PART_CHARACTERS,
    ExitCode,
    PrepareError,
    StoreError,
    UsageError,
    from_dict,
    raise_as,
)


def tree() -> list[type[PrepareError]]:
    """Every error of the module, found by name and not by the way that from_dict finds them."""
    found = [
        kind
        for kind in vars(pipeline.core.errors).values()
        if isinstance(kind, type) and issubclass(kind, PrepareError)
    ]
    assert len(found) >= 12
    return found


@pytest.mark.parametrize("kind", tree())
def test_each_class_survives_json(kind: type[PrepareError]) -> None:
    error = kind("it broke", where="/some/file, key x", hint="mend x")
    back = from_dict(json.loads(json.dumps(error.to_dict())))
    assert type(back) is kind
    assert (back.message, back.where, back.hint) == ("it broke", "/some/file, key x", "mend x")
    assert str(back) == str(error)
    assert back.exit_code == error.exit_code


@given(st.text(), st.text(), st.text())
def test_any_text_survives(what: str, where: str, hint: str) -> None:
    back = from_dict(json.loads(json.dumps(PrepareError(what, where=where, hint=hint).to_dict())))
    assert (back.message, back.where, back.hint) == (what, where, hint)


def test_every_part_is_limited() -> None:
    error = PrepareError("x" * 10_000_000, where="y" * 10_000_000, hint="z" * 10_000_000)
    lengths = [len(part) for part in (error.message, error.where, error.hint)]
    assert max(lengths) <= MAX_PART_CHARACTERS
    assert len(json.dumps(error.to_dict())) < 4 * MAX_PART_CHARACTERS


@pytest.mark.parametrize("kind", tree())
def test_the_documented_tree_names_class_and_exit_code(kind: type[PrepareError]) -> None:
    assert pipeline.core.errors.__doc__ is not None
    lines = [
        line.replace("|", " ").replace("+--", " ").split()
        for line in pipeline.core.errors.__doc__.splitlines()
    ]
    [line] = [words for words in lines if words[:1] == [kind.__name__]]
    assert int(line[1]) == kind.exit_code


def test_exit_codes_are_a_promise() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "SUCCESS": 0,
        "EXPECTED_ERROR": 1,
        "USAGE": 2,
        "UNEXPECTED": 3,
        "GATES_FAILED": 4,
        "UNDECIDED": 5,
        "INTERRUPTED": 130,
    }


def test_what_where_and_hint_are_printed_each_on_its_line() -> None:
    assert str(PrepareError("it broke", where="here", hint="do this")).splitlines() == [
        "it broke",
        "  where: here",
        "  hint:  do this",
    ]
    assert str(PrepareError("it broke")) == "it broke"


@pytest.mark.parametrize("kind", ["Exception", "SystemExit", "StageErr", "", None, 7])
def test_a_kind_that_is_not_ours_becomes_the_general_error(kind: object) -> None:
    error = from_dict({"kind": kind, "message": "it broke"})
    assert type(error) is PrepareError
    assert str(error) == "it broke"


def test_a_subclass_defined_elsewhere_is_found_too() -> None:
    class OwnError(pipeline.core.errors.StoreError):
        """An error of a plug-in."""

    assert type(from_dict(OwnError("x").to_dict())) is OwnError


def test_an_empty_report_is_still_an_error_that_says_so() -> None:
    assert str(from_dict({})) == "unknown error"


class TestRaiseAs:
    def test_the_reason_is_added_and_the_file_of_the_error_named(self, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        with pytest.raises(StoreError) as caught, raise_as(StoreError, "no", tmp_path, "mkdir"):
            inner.read_bytes()
        assert (caught.value.message, caught.value.where, caught.value.hint) == (
            "no: No such file or directory",
            str(inner),
            "mkdir",
        )
        assert isinstance(caught.value.__cause__, FileNotFoundError)

    def test_a_place_in_words_stays(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught, raise_as(UsageError, "no", "--output FILE"):
            (tmp_path / "inner").read_bytes()
        assert caught.value.where == "--output FILE"

    def test_an_error_without_a_file_has_the_path_that_was_given(self, tmp_path: Path) -> None:
        with (
            pytest.raises(StoreError) as caught,
            raise_as(StoreError, "no", tmp_path, errors=ValueError),
        ):
            int("x")
        assert caught.value.where == str(tmp_path)

    def test_what_is_not_named_and_what_is_ours_passes(self) -> None:
        with pytest.raises(ValueError, match="x"), raise_as(StoreError, "no", "here"):
            int("x")
        with (
            pytest.raises(UsageError),
            raise_as(StoreError, "no", "here", errors=(OSError, ValueError)),
        ):
            raise UsageError("mine")
