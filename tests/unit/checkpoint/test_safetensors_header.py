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
from small_checkpoint import safetensors

from pipeline.checkpoint.safetensors_header import (
    DTYPE_BITS,
    SafetensorsHeader,
    TensorEntry,
    read_header,
)
from pipeline.core.errors import CheckpointError

EXAMPLE = {"a": ("BF16", (2, 3)), "b": ("F32", ()), "c": ("F4", (4,)), "empty": ("U8", (0, 7))}

# One file for all examples of a property: hypothesis runs them one after the other.
FUNCTION_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path: Path, header: Any, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def outcome(path: Path) -> SafetensorsHeader | CheckpointError:
    """What reading ends in; any other error goes through."""
    try:
        return read_header(path)
    except CheckpointError as error:
        return error


def entry(dtype: str = "U8", shape: Any = (2,), offsets: Any = (0, 2)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    content = safetensors(EXAMPLE, format="pt")
    path.write_bytes(content)
    header = read_header(path)
    assert header.tensors["a"] == TensorEntry("BF16", (2, 3), 0, 12)
    assert header.tensors["c"] == TensorEntry("F4", (4,), 16, 18)
    assert header.tensors["empty"].elements == 0
    assert header.metadata == {"format": "pt"}
    assert header.data_bytes == 18
    assert content[header.data_start :] == b"\7" * 18


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """Entries of random types and shapes, laid one after the other in a random order."""
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
    assert header.data_bytes == size


@given(st.data())
@FUNCTION_FOLDER
def test_damage_ends_in_a_checkpoint_error_or_not_at_all(
    tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(safetensors(EXAMPLE, format="pt"))
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(content) - 1))
        content[where] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    found = outcome(path)
    if isinstance(found, CheckpointError):
        assert found.where == str(path)
        assert found.hint
    else:  # the damage hit the data, a name or the like; the sizes still hold
        assert found.data_start + found.data_bytes == len(content)


@given(st.binary(max_size=300))
@FUNCTION_FOLDER
def test_any_header_bytes(tmp_path: Path, text: bytes) -> None:
    found = outcome(write(tmp_path / "m.safetensors", text, b""))
    assert found.hint if isinstance(found, CheckpointError) else found.data_bytes == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(
    dtype=st.sampled_from(["U8", "F4", "F6_E2M3"]) | json_values,
    shape=st.lists(st.integers()) | json_values,
    offsets=st.lists(st.integers(), min_size=2, max_size=2) | json_values,
)
@FUNCTION_FOLDER
def test_any_entry(tmp_path: Path, dtype: Any, shape: Any, offsets: Any) -> None:
    found = outcome(write(tmp_path / "m.safetensors", {"a": entry(dtype, shape, offsets)}, b""))
    if isinstance(found, CheckpointError):
        assert found.hint
    else:
        assert found.tensors["a"].elements == 0


@given(st.integers(0, 1000))
@FUNCTION_FOLDER
def test_every_truncation_is_found(tmp_path: Path, kept: int) -> None:
    content = safetensors(EXAMPLE, format="pt")
    path = tmp_path / "m.safetensors"
    path.write_bytes(content[: min(kept, len(content) - 1)])
    with pytest.raises(CheckpointError):
        read_header(path)


def test_truncation_names_both_sizes(tmp_path: Path) -> None:
    content = safetensors(EXAMPLE)
    path = tmp_path / "m.safetensors"
    path.write_bytes(content[:-5])
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    promise = f"has {len(content) - 5} bytes, its header requires {len(content)}: it is truncated"
    assert promise in caught.value.message
    assert caught.value.where == str(path)
    assert "download" in caught.value.hint


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


def test_git_lfs_pointer_is_recognized(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 5\n")
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert caught.value.where == str(path)
    assert "lfs pull" in caught.value.hint


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_header(tmp_path / "none.safetensors")
    assert caught.value.where == str(tmp_path / "none.safetensors")
