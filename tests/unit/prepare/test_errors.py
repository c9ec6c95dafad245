from __future__ import annotations

import json
from pathlib import Path

import pytest

import prepare.errors
from prepare.errors import (
    MAX_PART_CHARACTERS,
    PrepareError,
    UsageError,
    explain,
    from_dict,
)


def tree() -> list[type[PrepareError]]:
    found = [
        kind
        for kind in vars(prepare.errors).values()
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


def test_every_part_is_whole_text() -> None:
    error = PrepareError("half a pair: \ud800", where="/a/\udcff", hint="x")
    assert error.message == "half a pair: \\ud800"
    json.dumps(error.to_dict(), ensure_ascii=False).encode()


def test_a_working_folder_that_was_deleted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        Path.cwd()
    explained = explain(caught.value)
    assert isinstance(explained, UsageError)
    assert "working folder" in explained.message


def test_every_part_is_limited() -> None:
    error = PrepareError("x" * 10_000_000, where="y" * 10_000_000, hint="z" * 10_000_000)
    lengths = [len(part) for part in (error.message, error.where, error.hint)]
    assert max(lengths) <= MAX_PART_CHARACTERS
    assert len(json.dumps(error.to_dict())) < 4 * MAX_PART_CHARACTERS
