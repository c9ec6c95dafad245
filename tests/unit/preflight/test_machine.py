"""What the machine is said to have; the GPU's driver is a program on the PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.preflight.machine import machine_of
from prepare.hardware import this_node


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_gpus_of_one_kind_that_cuda_shows(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = programs / "nvidia-smi"
    listed = [("H100", 1), ("L4", 2), ("H100", 3), ("H100", 4)]
    lines = [f"echo 'GPU {n - 1}: NVIDIA {kind} (UUID: GPU-{n})';" for kind, n in listed]
    program.write_text(f'#!/bin/sh\ncase "$1" in\n-L) {" ".join(lines)}\n;;\nesac\n')
    program.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = machine_of(this_node(with_gpus=True), tmp_path, with_gpu=True)
    assert (found.gpu, found.gpus, found.visible_devices) == ("NVIDIA H100", 3, None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    found = machine_of(this_node(with_gpus=True), tmp_path, with_gpu=True)
    assert (found.gpu, found.gpus, found.visible_devices) == ("NVIDIA H100", 1, "3")
