"""Jobs, with Slurm's commands played by scripts: a controller that is down, nodes of several kinds.

The real ones are in tests/e2e/cluster/.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from listener import Listener

from artifacts.run_record import StageReport
from pipeline.core.errors import StageError, UsageError
from pipeline.core.resource_request import ResourceRequest
from pipeline.run.executors import slurm
from pipeline.run.executors.slurm import SlurmJob, SlurmOptions

DOWN = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"


class Controller:
    """Slurm's commands, which find it down so many times.

    Args:
        outage: how often scancel gets no answer, after which it is up again.
    """

    def __init__(self, folder: Path, outage: int) -> None:
        self._asked = folder / "asked"
        answers = f"[ $(wc -l < {self._asked}) -gt {outage} ] || {{ {DOWN}; }}"
        write_program(folder / "scancel", f'echo "$@" >> {self._asked}; {answers}')
        write_program(folder / "squeue", f"{answers}; echo 'CANCELLED (None)'")

    def asked(self) -> list[str]:
        """What scancel was told, each time."""
        return self._asked.read_text().splitlines()


class Heard(Listener):
    """Nothing of it has several stages."""

    def stage_ended(self, stage: StageReport) -> None:
        raise AssertionError


def write_program(program: Path, line: str) -> None:
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def test_a_controller_that_is_down_for_a_while_is_asked_again(programs: Path) -> None:
    controller = Controller(programs, outage=2)
    SlurmJob("17", programs / "log").cancel()
    assert controller.asked() == ["17"] * 3


def test_one_that_stays_down_leaves_a_job_that_is_named(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "END_TIMEOUT_S", 0.5)
    Controller(programs, outage=10**6)
    with pytest.raises(StageError) as raised:
        SlurmJob("17", programs / "log").cancel()
    assert "17" in raised.value.message
    assert "scancel 17" in raised.value.hint


def test_a_job_whose_node_does_not_see_the_run_is_told_as_that(programs: Path) -> None:
    write_program(programs / "squeue", "echo 'FAILED (JobLaunchFailure)'")
    log = programs / "run" / "stage.log"
    log.parent.mkdir()
    log.with_suffix(".events").touch()
    began = time.monotonic()
    with pytest.raises(UsageError) as raised:
        SlurmJob("17", log).wait(Heard())
    assert raised.value.where == str(log.parent)
    assert time.monotonic() - began < slurm.VISIBILITY_TIMEOUT_S / 2


NODES = """
a1 64 2000 gpu:h100:8(S:0-1)
a2 64 1000 gpu:h100:8(S:0-1)
a2 64 1000 gpu:h100:8(S:0-1)
b1 32 1 gpu:l4:1
c1 32 500 gpu:2
login 8 4000 (null)
"""


@pytest.mark.parametrize(
    ("needs", "options", "excluded", "room"),
    [
        (ResourceRequest(gpus=1), {}, "b1,c1", 16),
        (ResourceRequest(gpus=2), {}, "c1", 8),
        (ResourceRequest(cpus="all"), {}, "b1,c1,login", 2),
        (ResourceRequest(gpus=1), {"gpu_kind": "l4"}, "", 1),
        (ResourceRequest(gpus=1), {"flags": ["--constraint=rack7"]}, "", 19),
        (ResourceRequest(), {}, "", 200),
        (ResourceRequest(memory_bytes=1000 * 2**20), {}, "", 2 + 1 + 32 + 1 + 4),
    ],
)
def test_what_serves_goes_to_nodes_of_the_most_frequent_kind(
    programs: Path, needs: ResourceRequest, options: dict[str, Any], excluded: str, room: int
) -> None:
    write_program(programs / "sinfo", f"echo '{NODES.strip()}'")
    for name in ("sbatch", "squeue", "scancel"):
        write_program(programs / name, f'echo "$@" >> {programs}/asked')
    executor = SlurmOptions(**options).open()
    assert executor.count_room(needs) == room
    executor.find_room(needs)
    asked = (programs / "asked").read_text().split()
    assert [word for word in asked if word.startswith("--exclude")] == (
        [f"--exclude={excluded}"] if excluded else []
    )


@pytest.mark.parametrize(
    ("needs", "options", "asked"),
    [
        (ResourceRequest(memory_bytes=10**8), {}, "--mem=96M"),
        (ResourceRequest(memory_bytes=10**11), {}, "--mem=4000M"),
        (ResourceRequest(memory_bytes=10**11, gpus=2), {}, "--mem=2000M"),
        (
            ResourceRequest(memory_bytes=10**11, gpus=1),
            {"gpu_kind": "l4"},
            "",
        ),  # nothing is said of those
        (ResourceRequest(memory_bytes=10**11, cpus="all"), {}, "--mem=0"),
    ],
)
def test_no_more_memory_is_asked_for_than_nodes_have(
    programs: Path, needs: ResourceRequest, options: dict[str, Any], asked: str
) -> None:
    write_program(programs / "sinfo", f"echo '{NODES.strip()}'")
    for name in ("sbatch", "squeue", "scancel"):
        write_program(programs / name, f'echo "$@" >> {programs}/asked')
    SlurmOptions(**options).open().find_room(needs)
    words = (programs / "asked").read_text().split()
    assert [word for word in words if word.startswith("--mem")] == ([asked] if asked else [])
