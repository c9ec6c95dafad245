"""Checks of an engine before any work: version and arguments."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.serving.serving_arguments import ServingArguments
from prepare.errors import ServingError, UsageError, raise_as
from prepare.private_files import remember
from prepare.process_environment import server_environment
from recipes.engines import Engine, find_engine

ANSWER_TIMEOUT_S = 300  # importing an engine takes minutes on a busy machine


@cache
def engine_version(engine: str, python: Path) -> str:
    """Return the engine's version; ServingError if it reports none.

    It is asked once in a process: it imports the engine, for 5 to 25 seconds.
    """
    with raise_as(
        ServingError,
        "the engine does not report its version",
        python,
        "`prepare doctor` checks the environments",
        errors=(OSError, subprocess.SubprocessError, LookupError),
    ):
        answer = subprocess.run(
            find_engine(engine).version_command(str(python)),
            env=server_environment(os.environ, {}, python=python),
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT_S,
            check=True,
        )
        lines = [line for line in answer.stdout.splitlines() if line.startswith("engine-version ")]
        return lines[-1].split()[1]


REFUSED = 2  # exit code of argparse


def check_engine_arguments(
    served: Collection[tuple[str, ServingArguments]],
    python_of: Callable[[str], Path],
    accepted: Path,
) -> None:
    """Let each engine's parser read arguments that it has not accepted yet, in one process.

    Only its own refusal counts. `accepted` has an empty file for each accepted pair.
    """
    unread: dict[str, dict[Path, dict[str, Any]]] = {}
    for identity, serving in served:
        arguments = serving.for_engine()
        told = json.dumps([identity, serving.engine, arguments], sort_keys=True)
        marker = accepted / hashlib.sha256(told.encode()).hexdigest()
        if not marker.exists():
            unread.setdefault(serving.engine, {})[marker] = arguments
    for name, by_marker in unread.items():
        if _are_accepted(find_engine(name), list(by_marker.values()), python_of):
            for marker in by_marker:
                remember(marker)


def _are_accepted(
    engine: Engine, servers: Sequence[dict[str, Any]], python_of: Callable[[str], Path]
) -> bool:
    """Return whether the parser read them; UsageError if it refuses one."""
    python = python_of(engine.environment)
    command = engine.parse_command(str(python), servers)
    if not command:
        return False
    try:
        answer = subprocess.run(
            command,
            env=server_environment(os.environ, {}, python=python),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    if answer.returncode == REFUSED:
        fault = answer.stderr.strip().rpartition("error: ")[2][:500]
        raise UsageError(
            f"{engine.title} does not accept the serving arguments: {fault}",
            where="--profile, key engine_arguments, or --served-variant",
            hint="correct the argument; the key is the engine's long option without dashes",
        )
    return answer.returncode == 0
