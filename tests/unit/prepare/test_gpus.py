from __future__ import annotations

from pathlib import Path

import pytest

from prepare.gpus import (
    allottable_gpus,
    busy_gpus,
    is_driver_too_old,
    visible_gpus,
)

PLAIN = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1a)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2b)
GPU 2: NVIDIA L4 (UUID: GPU-2c)"""
SLICED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1a)
  MIG 3g.40gb     Device  0: (UUID: MIG-aa)
  MIG 1g.10gb     Device  1: (UUID: MIG-bb)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2b)"""


def driver(
    folder: Path, listing: str, monkeypatch: pytest.MonkeyPatch, version: str = "580.9"
) -> None:
    names = [line.split(": ")[1].split(" (")[0] for line in listing.splitlines() if line[0] == "G"]
    facts = "\n".join(f"{version}, 81559 MiB, {'8.9' if 'L4' in name else '9.0'}" for name in names)
    program = folder / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase \"$*\" in\n-L) echo '{listing}';;\n"
        f"*driver_version*compute_cap*) echo '{facts}';;\n"
        "*) exit 2;;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_what_the_driver_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(tmp_path, PLAIN, monkeypatch)
    first, _, last = visible_gpus({})
    assert (first.name, first.uuid, first.driver) == ("NVIDIA H100 80GB HBM3", "GPU-1a", "580.9")
    assert (first.memory, first.compute_capability) == ("81559 MiB", 9.0)
    assert (last.name, last.compute_capability) == ("NVIDIA L4", 8.9)


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("0", ["GPU-1a"]),
        ("2,0", ["GPU-2c", "GPU-1a"]),
        (" 1 , 2 ", ["GPU-2b", "GPU-2c"]),
        ("GPU-1", ["GPU-1a"]),
        ("GPU-2", []),  # of two
        ("", []),
        ("-1", []),
        ("0,-1,1", ["GPU-1a"]),  # what is none ends the list
        ("0,7,1", ["GPU-1a"]),
        ("0,0", []),
        ("all", []),
    ],
)
def test_cuda_visible_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, uuids: list[str]
) -> None:
    driver(tmp_path, PLAIN, monkeypatch)
    found = visible_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.uuid for gpu in found] == uuids


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["MIG-aa"]),  # a process sees one slice, and no whole GPU next to it
        ("0", ["MIG-aa"]),
        ("MIG-bb", ["MIG-bb"]),
        ("1", ["GPU-2b"]),
        ("1,MIG-bb", ["MIG-bb"]),
    ],
)
def test_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, uuids: list[str]
) -> None:
    driver(tmp_path, SLICED, monkeypatch)
    found = visible_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.uuid for gpu in found] == uuids
    assert found[0].compute_capability == 9.0
    if found[0].is_slice:
        # Not one that a data file describes by its whole memory.
        assert found[0].name.startswith("NVIDIA H100 80GB HBM3 MIG ")
        assert found[0].memory == ""


@pytest.mark.parametrize(
    ("version", "is_too_old"),
    [("535.183.06", True), ("579.99", True), ("580.65.06", False), ("600", False), ("", False)],
)
def test_the_driver_that_cuda_13_needs(version: str, is_too_old: bool) -> None:
    assert is_driver_too_old(version) is is_too_old


def test_what_can_be_given_away_is_of_one_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(tmp_path, PLAIN, monkeypatch)
    assert [gpu.uuid for gpu in allottable_gpus({})] == ["GPU-1a", "GPU-2b"]
    assert [gpu.uuid for gpu in allottable_gpus({"CUDA_VISIBLE_DEVICES": "2"})] == ["GPU-2c"]
    assert allottable_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_slices_of_one_kind_can_be_given_away_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(tmp_path, SLICED.replace("1g.10gb", "3g.40gb"), monkeypatch)
    assert [gpu.uuid for gpu in allottable_gpus({})] == ["MIG-aa", "MIG-bb"]
    driver(tmp_path, SLICED, monkeypatch)
    assert [gpu.uuid for gpu in allottable_gpus({})] == ["MIG-aa"]


def test_on_which_somebody_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(tmp_path, PLAIN, monkeypatch)
    assert busy_gpus() == set()  # it does not say
    answer = "#!/bin/sh\nprintf 'GPU-1a\\nGPU-2c\\nGPU-1a\\n'\n"
    (tmp_path / "nvidia-smi").write_text(answer)
    assert busy_gpus() == {"GPU-1a", "GPU-2c"}
