"""The header reader tells whole files from damaged ones, and never ends with another error."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prepare.errors import CheckpointError
from recipes.checkpoints.safetensors_header import (
    DTYPE_BITS,
    read_header,
)

# One file for all examples of a property: hypothesis runs them one after the other.
FUNCTION_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path: Path, header: Any, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str = "U8", shape: Any = (2,), offsets: Any = (0, 2)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    names = draw(
        st.lists(st.text(st.characters(exclude_categories=["Cs"])), unique=True, max_size=5)
    )
    entries: dict[str, Any] = {}
    position = 0
    for name in names:
        if name == "__metadata__":
            continue
        dtype = draw(st.sampled_from(sorted(DTYPE_BITS)))
        shape = [*draw(st.lists(st.integers(0, 5), max_size=3)), 8]
        size = math.prod(shape) * DTYPE_BITS[dtype] // 8
        entries[name] = entry(dtype, shape, [position, position + size])
        position += size
    shuffled = draw(st.permutations(list(entries)))
    return {name: entries[name] for name in shuffled}, position


@given(layouts())
@FUNCTION_FOLDER
def test_round_trip(tmp_path: Path, layout: tuple[dict[str, Any], int]) -> None:
    entries, size = layout
    header = read_header(write(tmp_path / "m.safetensors", entries, b"\0" * size))
    found = {
        name: entry(t.dtype, list(t.shape), [t.begin, t.end]) for name, t in header.tensors.items()
    }
    assert found == entries


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"{", b"", "not valid JSON"),
        (b"\xff\xff", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", b"", "not valid JSON"),
        (b'{"a\\ud800": 1}', b"", "not valid JSON"),
        (b'{"a": 1, "a": 2}', b"", "twice"),
        ([], b"", "not a JSON object"),
        ({"__metadata__": {"a": 1}}, b"", "__metadata__"),
        ({"a": 1}, b"", "lacks dtype"),
        ({"a": entry("I3")}, b"ab", "unknown type 'I3'"),
        ({"a": entry(shape=[2, True])}, b"ab", "shape"),
        ({"a": entry(shape=[-2])}, b"ab", "shape"),
        ({"a": entry(shape=[1] * 65)}, b"ab", "shape"),
        ({"a": entry(offsets=[2, 0])}, b"ab", "offsets"),
        ({"a": entry(offsets=[0, 1.0])}, b"ab", "offsets"),
        ({"a": entry(shape=[3])}, b"ab", "takes 16 bits; its type and shape need 24"),
        ({"a": entry("F4", [3])}, b"ab", "need 12"),
        ({"a": entry(offsets=[1, 3])}, b"abc", "leave a gap at 'a'"),
        ({"a": entry(), "b": entry(offsets=[1, 3])}, b"abc", "overlap at 'b'"),
        ({"a": entry()}, b"abc", "has 71 bytes, its header requires 70"),
    ],
)
def test_each_fault_as_text(tmp_path: Path, header: Any, data: bytes, words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_header(write(tmp_path / "m.safetensors", header, data))
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("length", [40_000_001, 2**64 - 1])
def test_header_too_long(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(CheckpointError, match=f"{length} .*40000000"):
        read_header(path)
