"""Copies of a run as the elements of a Slurm job array.

Slurm requeues preempted and lost elements. Jobs survive the launcher. `slurm.flags` has what a site
requires.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from pipeline.environments.settings import Settings
from prepare.errors import UsageError
from prepare.private_files import make_folder, write_atomically
from prepare.process_environment import registry_variables

JOB = "slurm-job"
TIMEOUT_S = 90
# From squeue(1): an element in any other state continues, or starts again.
OVER = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE"),
    *("OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED"),
}
SCRIPT = """#!/bin/sh
export PREPARE_COPY="$SLURM_ARRAY_TASK_ID"
[ "$PREPARE_COPY" = 0 ] || unset {registry}
exec {command}
"""


class SlurmLauncher:
    """The job array of one run."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        for command in ("sbatch", "squeue"):
            if shutil.which(command) is None:
                raise UsageError(
                    f"`--on slurm` needs the command {command}",
                    where="--on slurm",
                    hint="run this where jobs are submitted, such as a login node",
                )
        self._settings = settings
        self._folder = folder
        self._job = ""
        self.lost: dict[int, str] = {}  # Slurm does not say why

    def start(self, count: int) -> str:
        """Submit the array, unless its main element lives."""
        file = self._folder / JOB
        self._job = file.read_text().strip() if file.exists() else ""
        if not (self._job and self.state(f"{self._job}_0")):
            self._job = self._submit(count)
            write_atomically(file, self._job)
        return f"Slurm's job array {self._job}; `scancel {self._job}` ends it"

    def state(self, job: str = "") -> str:
        """Return elements by state, or one's state."""
        jobs = f"--jobs={job or self._job}"
        command = ["squeue", jobs, "--array", "--states=all", "-h", "--format=%T"]
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        if answer.returncode and "Invalid job id" not in answer.stderr:  # else Slurm forgot it
            return "unknown"  # the controller does not answer: no element is known to be over
        states = Counter(state for state in answer.stdout.split() if state not in OVER)
        return ", ".join(f"{number} {state.lower()}" for state, number in sorted(states.items()))

    def close(self) -> None:
        """Leave the jobs alone."""

    def _submit(self, count: int) -> str:
        make_folder(self._folder / "copies")
        slurm = self._settings.slurm
        command = [slurm.python or sys.executable, "-P", "-m", "prepare", "model"]
        command += ["--run", self._folder.name, "--store", str(self._settings.store)]
        registry = " ".join(registry_variables(os.environ)) or "MLFLOW_TRACKING_TOKEN"
        answer = subprocess.run(
            [
                *("sbatch", "--parsable", f"--array=0-{count - 1}", "--requeue"),
                *("--job-name=prepare", "--open-mode=append", "--nodes=1", "--ntasks=1"),
                f"--output={self._folder}/copies/slurm.%a.log",
                *slurm.flags,
            ],
            input=SCRIPT.format(registry=registry, command=shlex.join(command)),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        if answer.returncode:
            raise UsageError(
                f"Slurm refused the copies: {answer.stderr.strip()}",
                where="sbatch",
                hint="set `slurm.flags` in the settings file, such as --partition=gpu",
            )
        return answer.stdout.strip().partition(";")[0]
