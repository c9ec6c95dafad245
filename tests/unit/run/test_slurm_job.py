"""A job's end, with Slurm's commands played by scripts: a controller that is down, and comes back.

The real ones are in tests/e2e/cluster/.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.errors import StageError
from pipeline.run.executors import slurm
from pipeline.run.executors.slurm import SlurmJob

DOWN = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"


class Controller:
    """Slurm's commands, which find it down so many times.

    Args:
        outage: how often scancel gets no answer, after which it is up again.
    """

    def __init__(self, folder: Path, outage: int) -> None:
        self._asked = folder / "asked"
        answers = f"[ $(wc -l < {self._asked}) -gt {outage} ] || {{ {DOWN}; }}"
        self._write(folder / "scancel", f'echo "$@" >> {self._asked}; {answers}')
        self._write(folder / "squeue", f"{answers}; echo 'CANCELLED (None)'")

    def asked(self) -> list[str]:
        """What scancel was told, each time."""
        return self._asked.read_text().splitlines()

    def _write(self, program: Path, line: str) -> None:
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
    monkeypatch.setattr(slurm, "SECONDS_TO_END", 0.5)
    Controller(programs, outage=10**6)
    with pytest.raises(StageError) as raised:
        SlurmJob("17", programs / "log").cancel()
    assert "17" in raised.value.what
    assert "scancel 17" in raised.value.cure
