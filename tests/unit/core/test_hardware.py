"""What a machine says of itself, and what of that a verdict and a speed are kept for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from some_node import NODE, node_of

from pipeline.core.cpu_features import VARIABLE
from pipeline.core.errors import UsageError
from pipeline.core.hardware import Hardware, NodeInfo, hardware, this_node

DRIVER = (
    '#!/bin/sh\ncase "$1" in\n'
    "-L) echo 'GPU 0: NVIDIA L4 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA L4 (UUID: GPU-2)';;\nesac\n"
)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(DRIVER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_it_is_read_back_as_it_was_sent(two_gpus: None) -> None:
    here = this_node()
    assert [gpu.uuid for gpu in here.gpus] == ["GPU-1", "GPU-2"]
    assert NodeInfo.model_validate_json(here.model_dump_json()) == here


def test_its_variables_are_not_ours(two_gpus: None) -> None:
    given = this_node({**os.environ, "CUDA_VISIBLE_DEVICES": "1", VARIABLE: "none"})
    assert [gpu.uuid for gpu in given.gpus] == ["GPU-2"]
    assert given.visible_devices == "1"
    assert given.cpu_features == ()
    assert given.cpu_limits[VARIABLE] == "none"
    with pytest.raises(UsageError):
        this_node({VARIABLE: "sse9"})


def test_gpus_are_no_part_of_what_a_cpu_is_judged_on(two_gpus: None) -> None:
    assert hardware("cpu") == this_node(with_gpus=False).hardware("cpu")
    assert hardware("cuda") == Hardware(accelerator="cuda", gpu="NVIDIA L4")


def test_speeds_are_kept_for_one_machine_or_for_a_kind_of_node() -> None:
    assert NODE.measured_on("cpu") == NODE.machine
    some = NODE.model_copy(update={"machine": "", "name": "n7"})
    assert some.measured_on("cpu") == f"{NODE.cpu}, 2 cores"
    # Any part of the node that a job may use.
    assert some.model_copy(update={"cores": 1}).measured_on("cpu") == some.measured_on("cpu")
    on_gpu = node_of({"gpu": "NVIDIA L4"}).model_copy(update={"machine": ""})
    assert on_gpu.measured_on("cuda") == f"NVIDIA L4, {NODE.cpu}, 2 cores"
