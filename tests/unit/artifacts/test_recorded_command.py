"""What a run was asked for, read back from a record that anybody may have written."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_reports import COMMAND

from artifacts.command_line import command_line
from artifacts.recorded_command import RunKind, read_command
from pipeline.core.errors import StoreError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
WHOLE: dict[str, Any] = {
    **COMMAND,
    "asked": {"recipes": ["awq-w4a16"], "profile": "cpu", "policy": "demo"},
    "gate": False,
    "recheck": "",
    "again": "",
    "tried": ["a"],
    "weights": None,
}


def test_as_written() -> None:
    read_command(WHOLE)
    read_command({})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("recipes", 5),
        ("requested", [1]),
        ("attempted", {"a": 1}),
        ("checkpoint", {}),
        ("recheck", ["x"]),
    ],
)
def test_an_option_of_another_kind_is_named(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"command.{key}"):
        read_command({**WHOLE, key: value})


@settings(max_examples=300, deadline=None)
@given(
    path=st.sampled_from([(key,) for key in WHOLE] + [("asked", key) for key in WHOLE["asked"]]),
    value=JSON,
    kind=st.sampled_from(["model", "gate", "recheck"]),
    public=st.booleans(),
)
def test_a_strangers_command_raises_nothing_but_our_error(
    path: tuple[str, ...], value: Any, kind: RunKind, public: bool
) -> None:
    command = copy.deepcopy(WHOLE)
    place = command
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with contextlib.suppress(StoreError):
        command_line(kind, command, public=public)
