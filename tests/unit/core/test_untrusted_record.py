from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from pipeline.core.record import Record
from pipeline.core.untrusted.json import UntrustedJsonError
from pipeline.core.untrusted.record import MAX_FAULT_CHARACTERS, parse_record, read_record


class Listed(Record):
    names: tuple[str, ...] = Field(fail_fast=True)


def test_a_record(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"names": ["a"]}')
    assert read_record(tmp_path / "r.json", Listed) == Listed(names=("a",))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"names": [1, 2]}', "names.0: Input should be a valid string"),
        ('{"names": [], "names": ["b"]}', "twice"),
        ('{"names": [' + "[" * 100 + "]" * 100 + "]}", "deep"),
        ('{"names": [], "' + "x" * 1000 + '": 1}', "xxx"),
        ("{}", "names: Field required"),
        ("[]", "Input should be"),
        ("nonsense", "Expecting value"),
    ],
    ids=["type", "twice", "deep", "long", "missing", "list", "none"],
)
def test_one_fault_is_told(text: str, fault: str) -> None:
    with pytest.raises(UntrustedJsonError, match=fault) as caught:
        parse_record(text.encode(), Listed)
    assert len(str(caught.value)) <= MAX_FAULT_CHARACTERS


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=tmp_path.name):
        read_record(tmp_path, Listed)
