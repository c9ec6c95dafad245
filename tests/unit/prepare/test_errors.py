from __future__ import annotations

import json

import pytest

import prepare.errors
from prepare.errors import (
    MAX_PART_CHARACTERS,
    PrepareError,
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


def test_every_part_is_limited() -> None:
    error = PrepareError("x" * 10_000_000, where="y" * 10_000_000, hint="z" * 10_000_000)
    lengths = [len(part) for part in (error.message, error.where, error.hint)]
    assert max(lengths) <= MAX_PART_CHARACTERS
    assert len(json.dumps(error.to_dict())) < 4 * MAX_PART_CHARACTERS
