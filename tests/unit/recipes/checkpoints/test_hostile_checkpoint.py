"""Checkpoints that would hang their reader, or take all memory."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

import pytest
from measured_refusal import refusal
from small_checkpoint import checkpoint_files, write_files

from pipeline.preflight.memory import Model
from prepare.digest import FileDigests
from prepare.errors import CheckpointError
from recipes.checkpoints.checkpoint import inspect_folder, read_folder

SECONDS, MIB = 2.0, 300.0
PATIENCE = 2  # times as long where other tests have the cores
INDEX = "model.safetensors.index.json"


def look(folder: Path) -> None:
    digests = FileDigests(folder.parent / "digests.json")
    inspect_folder(folder, digests)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", INDEX, "tokenizer.json",
                                  "tokenizer_config.json", "x.py"])  # fmt: skip
@pytest.mark.parametrize("what", ["pipe", "device", "circle", "folder"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str, what: str) -> None:
    folder = write_files(tmp_path / "m", checkpoint_files())
    place = folder / name
    place.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(place)
    elif what == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero" if what == "device" else name)
    started = time.monotonic()
    with pytest.raises(CheckpointError):
        look(folder)
    assert time.monotonic() - started < SECONDS * PATIENCE


def test_a_folder_of_very_many_files_is_refused(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "m", checkpoint_files())
    for number in range(20_001):
        (folder / f"{number}.py").touch()
    with pytest.raises(CheckpointError, match="20,000"):
        look(folder)


def test_a_folder_of_many_files_takes_seconds(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "m", checkpoint_files())
    for number in range(6_000):
        (folder / f"{number}.py").touch()
    started = time.process_time()
    look(folder)
    assert time.process_time() - started < SECONDS * PATIENCE


def header_of(folder: Path, text: bytes, data: bytes = b"1234") -> Path:
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return file


ENTRY = '"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'


def tensors(count: int) -> bytes:
    return ("{" + ",".join(ENTRY % number for number in range(count)) + "}").encode()


HEADERS = {
    "1.6 million tensors": lambda: tensors(1_600_000),
    "half a million tensors": lambda: tensors(500_000),
    "one text of 39 MB": lambda: b'{"__metadata__":{"a":"' + b"x" * 39_000_000 + b'"}}',
    "13 million lists": lambda: b'{"__metadata__":[' + b"[]," * 13_000_000 + b"[]]}",
    "999,000 empty objects": lambda: b'{"__metadata__":[' + b"{}," * 499_000 + b"[]]}",
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_a_large_header_is_refused_in_bounded_time_and_memory(tmp_path: Path, name: str) -> None:
    found = refusal(
        "recipes.checkpoints.safetensors_header:read_header", header_of(tmp_path, HEADERS[name]())
    )
    assert (found.error or "").startswith("CheckpointError")
    assert found.mib < MIB
    assert found.seconds < SECONDS * PATIENCE


def shape(tmp_path: Path, **config: object) -> None:
    files = checkpoint_files()
    said = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
    files["config.json"] = json.dumps(
        {**json.loads(files["config.json"]), **said, **config}
    ).encode()
    Model.of(read_folder(write_files(tmp_path / "m", files)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 2**31),
        ("num_hidden_layers", 10**30),
        ("hidden_size", 10**18),
        ("vocab_size", 10**19),
        ("num_key_value_heads", 10**13),
        ("max_position_embeddings", 10**40),
        ("sliding_window", 10**30),
        ("num_local_experts", -1),
    ],
)
def test_numbers_of_config_json_are_bounded(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(CheckpointError) as caught:
        shape(tmp_path, **{key: value})
    assert caught.value.where.endswith(f"key {key}")


@pytest.mark.parametrize(
    "names", [["x" * 10_000 + ".safetensors"], [f"{n}.safetensors" for n in range(100_000)]]
)
def test_an_index_of_names_that_cannot_be_is_refused(tmp_path: Path, names: list[str]) -> None:
    files = checkpoint_files()
    weight_map = {str(number): name for number, name in enumerate(names)}
    files[INDEX] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    with pytest.raises(CheckpointError, match="weight_map") as caught:
        read_folder(write_files(tmp_path / "m", files))
    assert len(str(caught.value)) < 1000


def test_a_tokenizer_of_3_gb_is_refused_before_it_is_hashed(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "m", checkpoint_files())
    with (folder / "tokenizer.json").open("ab") as file:
        file.truncate(3_000_000_000)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        look(folder)


def test_a_file_that_grows_while_it_is_hashed_ends(tmp_path: Path) -> None:
    # A regular file whose size is told as 0, and that is not empty.
    with pytest.raises(CheckpointError, match="/proc/self/maps"):
        FileDigests(tmp_path / "digests.json").digest(Path("/proc/self/maps"))
