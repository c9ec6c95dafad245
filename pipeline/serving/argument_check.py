"""Checks of an engine before any work: version and arguments."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path

from pipeline.serving.serving_arguments import ServingArguments
from prepare.errors import ServingError, UsageError, raise_as
from prepare.process_environment import server_environment
from recipes.engines import find_engine

ANSWER_TIMEOUT_S = 300  # importing an engine takes minutes on a busy machine


def engine_version(engine: str, python: Path) -> str:
    """Return the engine's version; ServingError if it reports none."""
    with raise_as(
        ServingError,
        "the engine does not report its version",
        python,
        "`prepare doctor` checks the environments",
        errors=(OSError, subprocess.SubprocessError),
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
    return lines[-1].split()[1] if lines else "unknown"


REFUSED = 2  # exit code of argparse


def check_engine_arguments(
    served: Collection[tuple[str, ServingArguments]],
    python_of: Callable[[str], Path],
    accepted: Path,
) -> None:
    """Let the engine's parser read arguments that it has not accepted yet.

    Only its own refusal counts. `accepted` has an empty file for each accepted pair.
    """
    for identity, serving in served:
        engine = find_engine(serving.engine)
        arguments = serving.for_engine()
        told = json.dumps([identity, serving.engine, arguments], sort_keys=True)
        marker = accepted / hashlib.sha256(told.encode()).hexdigest()
        if marker.exists():
            continue
        python = python_of(engine.environment)
        command = engine.parse_command(str(python), arguments)
        if not command:
            continue
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
            continue
        if answer.returncode == REFUSED:
            fault = answer.stderr.strip().rpartition("error: ")[2][:500]
            raise UsageError(
                f"{engine.title} does not accept the serving arguments: {fault}",
                where="--profile, key engine_arguments, or --served-variant",
                hint="correct the argument; the key is the engine's long option without dashes",
            )
        if answer.returncode == 0:
            accepted.mkdir(parents=True, exist_ok=True)
            marker.touch()
