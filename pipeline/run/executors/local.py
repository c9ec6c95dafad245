"""Runs a stage in a child process on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core import errors
from pipeline.core.credentials import hand_on
from pipeline.core.events import Progress
from pipeline.core.needs import Needs
from pipeline.core.private_files import open_log
from pipeline.core.process_environment import stage_environment
from pipeline.core.processes import GuardedProcess


class LocalExecutor:
    """The executor of a single machine; see executor.py."""

    @contextmanager
    def reserve(self, needs: Needs, progress: Progress) -> Iterator[LocalExecutor]:
        """This machine."""
        yield self

    def submit(self, spec: Path, log: Path) -> LocalJob:
        """Start `prepare stage run SPEC` as a guarded child."""
        with open_log(log) as log_file:
            process = GuardedProcess(
                # -P: a folder called 'pipeline' in the working directory must not shadow ours.
                [sys.executable, "-P", "-m", "pipeline.cli.main", "stage", "run", str(spec)],
                environment=stage_environment({**os.environ, **hand_on()}, stage_in(spec)),
                output=subprocess.PIPE,
                errors=log_file,
            )
        return LocalJob(process, log)


class LocalJob:
    """A stage running in a child process; see executor.py."""

    def __init__(self, process: GuardedProcess, log: Path) -> None:
        self._process = process
        self._log = log

    def wait(self, progress: Progress) -> None:
        """Pass events on until the stage ends.

        Raises:
            PrepareError: what the stage reported, or a StageError when it died without a word.
        """
        failure: errors.PrepareError | None = None
        for line in self._process.output:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a library printed to standard output; the log has the rest
            if not isinstance(event, dict):
                continue  # it printed a number
            if event.get("event") == "progress":
                progress.advance(event["task"], event["done"], event["total"], event["unit"])
            elif event.get("event") == "note":
                progress.note(event["text"])
            elif event.get("event") == "error":
                failure = errors.from_dict(event)
        code = self._process.wait()
        self._process.stop()
        if failure is not None:
            raise failure
        if code != 0:
            raise errors.StageError(
                f"a stage ended with exit code {code} and no message"
                + (" (killed; often the machine is out of memory)" if code == 137 else ""),
                where=str(self._log),
                cure="read the log; running the same command again continues where it stopped",
            )

    def cancel(self) -> None:
        """End the stage's whole process group."""
        self._process.stop()


def stage_in(spec: Path) -> str:
    """Which stage the file asks for; "" where it cannot be read, which the stage itself reports."""
    try:
        return str(json.loads(spec.read_bytes())["stage"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""
