"""Copies of a run as Ray tasks.

They end with the process that started them; the same command resumes.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from pipeline.environments.settings import Settings
from prepare.errors import UsageError
from prepare.private_files import make_folder, open_log
from prepare.process_environment import registry_variables, without_registry
from prepare.supervisor import SupervisedProcess

TRIES = 3
PASSED = ("PREPARE_", "HF_", "UV_", "PIP_", "MLFLOW_", "DATABRICKS_")


class RayLauncher:
    """The tasks of one run."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise UsageError(
                "`--on ray` needs the package ray",
                where="--on ray",
                hint="install it: pip install 'prepare-model[ray]'",
            ) from error
        self._ray: Any = ray
        self._settings = settings
        self._folder = folder
        self._tasks: dict[Any, int] = {}
        self.lost: dict[int, str] = {}  # why, by copy
        try:
            ray.init(address=settings.ray.address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"no Ray cluster answers: {error}",
                where=f"settings key ray.address: {settings.ray.address}",
                hint="start one (ray start --head), or name its head there",
            ) from error

    def start(self, count: int) -> str:
        make_folder(self._folder / "copies")
        options = self._settings.ray
        copy = self._ray.remote(run_copy).options(
            num_gpus=options.gpus,
            num_cpus=options.cpus,
            max_retries=TRIES,
            scheduling_strategy="SPREAD",
        )
        passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
        for index in range(count):
            given = passed if index == 0 else without_registry(passed)
            names = [self._folder.name, str(self._settings.store), str(self._folder / "copies")]
            self._tasks[copy.remote(index, *names, given)] = index
        return f"{count} Ray tasks; Ctrl-C ends them"

    def state(self) -> str:
        over, left = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0.1)
        for task in over:
            try:
                self._ray.get(task)
            except self._ray.exceptions.RayError as error:  # it was lost TRIES times
                self.lost[self._tasks[task]] = str(error).strip().partition("\n")[0]
        return f"{len(left)} Ray tasks" if left else ""

    def close(self) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=False)
        self._ray.shutdown()


def run_copy(index: int, run: str, store: str, folder: str, variables: dict[str, str]) -> int:
    """Be one copy; return its exit code.

    `folder` is for its log. `variables` are added to the node's own.
    """
    base = {**os.environ, **variables, "PREPARE_COPY": str(index)}
    for name in registry_variables(base) if index else ():
        del base[name]
    command = [sys.executable, "-P", "-m", "prepare", "model", "--run", run]
    with open_log(Path(folder) / f"ray.{index}.log") as output:
        process = SupervisedProcess([*command, "--store", store], environment=base, output=output)
    with process:
        return process.wait()
