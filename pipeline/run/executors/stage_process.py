"""`prepare task run` as a supervised child: started by every executor on its node."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.core.errors import PrepareError, StageError
from pipeline.core.file_locks import held_descriptors as locks_held
from pipeline.core.installation import this_prepare
from pipeline.core.private_files import open_log
from pipeline.core.process_environment import NetworkAccess
from pipeline.core.supervised_process import SupervisedProcess
from pipeline.core.untrusted import MAX_RECORD_BYTES, UntrustedJsonError, parse_json, read_regular

# -P: a folder called 'pipeline' in the working directory must not shadow ours.
TASK_RUN = ("-P", "-m", "pipeline.cli.main", "task", "run")


def start(
    task: Path,
    log: Path,
    variables: Mapping[str, str],
    held_descriptors: Sequence[int] = (),
) -> SupervisedProcess:
    """Start the work item of the file; its events are lines of output, the rest is logged.

    Args:
        held_descriptors: stay open until the last of its processes has ended.
    """
    with open_log(log) as log_file:
        return SupervisedProcess(
            [sys.executable, *TASK_RUN, str(task)],
            environment=variables,
            output=subprocess.PIPE,
            errors=log_file,
            held_descriptors=[*held_descriptors, *locks_held()],
        )


def check_end(code: int, failure: PrepareError | None, log: Path) -> None:
    """Raise the error that the work reported, or a StageError if it died without one."""
    if failure is not None:
        raise failure
    if code != 0:
        raise StageError(
            f"a stage ended with exit code {code} and no message"
            + (" (killed; often the machine is out of memory)" if code == 137 else ""),
            where=str(log),
            hint="read the log, then run the same command again",
        )


def stage_in(task: Path) -> str:
    """Return the stage of the file; "" if unreadable, which the stage itself reports."""
    return _word_in(task, "stage")


def needs_of(task: Path) -> list[NetworkAccess]:
    """Return the network access of a serving task: an external endpoint."""
    found = _read(task)
    models = [found.get("model"), found.get("baseline")]
    asks = any(isinstance(each, dict) and each.get("endpoint") is not None for each in models)
    return [NetworkAccess.ENDPOINT] if asks else []


def refuse_of_others(task: Path) -> None:
    """Refuse work of another prepare: a stage's code is in no key.

    Raises:
        StageError: names both.
    """
    refuse_other(_word_in(task, "prepare"))


def refuse_other(theirs: str) -> None:
    """Refuse another prepare; raise StageError, which names both.

    Args:
        theirs: the version, from another machine with its code; "" if unknown.
    """
    if theirs not in ("", __version__) and theirs != this_prepare():
        raise StageError(
            f"prepare {theirs} hands out this work, and prepare {this_prepare()} is installed here",
            where=f"node {platform.node()}",
            hint="install the same version, of the same commit, on every node and where the "
            "command is given; while a run goes on its code must not change",
        )


def _word_in(task: Path, key: str) -> str:
    return str(_read(task).get(key, ""))


def _read(task: Path) -> dict[str, Any]:
    """Return the work item; {} if unreadable, which its own process reports."""
    try:
        found = parse_json(read_regular(task, MAX_RECORD_BYTES), finite=False, whole_text=False)
    except (OSError, UntrustedJsonError):
        return {}
    return found if isinstance(found, dict) else {}
