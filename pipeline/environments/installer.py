"""Execution of uv with a clean process environment, progress and error hints."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.core.errors import EnvironmentBuildError
from pipeline.core.supervisor import die_with_parent
from pipeline.environments.package_sources import package_source_variables

_LINES_QUOTED = 12
_POLL_INTERVAL_S = 0.2

# Variables that redirect uv or Python, or change what the lock installs.
_REMOVED_VARIABLES = (
    "PYTHONHOME",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "UV_CONSTRAINT",
    "UV_EXCLUDE_NEWER",
    "UV_OVERRIDE",
    "UV_PYTHON",
    "UV_REQUIRE_HASHES",
    "UV_SYSTEM_PYTHON",
)

_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"No space left on device|Disk quota exceeded|os error (28|122)",
        "free some disk, or set PREPARE_HOME (and UV_CACHE_DIR) to a larger one",
    ),
    (
        r"invalid peer certificate|UnknownIssuer|certificate verify failed",
        "let uv trust your site's certificate: set SSL_CERT_FILE, or UV_SYSTEM_CERTS=1",
    ),
    (
        r"dns error|Connection refused|error sending request|timed out|timeout|network was disabled"
        r"|Failed to fetch",
        "check the network; behind a mirror set UV_DEFAULT_INDEX, and UV_FIND_LINKS to where "
        "torch's CPU wheel is; or name an interpreter in the settings file",
    ),
    (
        r"no usable wheels|no wheels with a matching|not compatible with|requires Python|Python ABI"
        r"|Python version",
        "run prepare with Python 3.11 on x86-64 Linux, which the locks were resolved for, or name "
        "an interpreter in the settings file",
    ),
    (
        r"Permission denied|Read-only file system|os error (13|30)",
        "set PREPARE_HOME (and UV_CACHE_DIR) to a writable folder",
    ),
    (
        r"No solution found|not found in the package registry|there is no version",
        "the package index lacks a locked version: point UV_DEFAULT_INDEX and UV_FIND_LINKS at one "
        "that has it, or name an interpreter in the settings file",
    ),
)


def find_uv() -> Path:
    """Return the bundled uv; raise EnvironmentBuildError if it is missing."""
    from uv import find_uv_bin

    try:
        return Path(find_uv_bin())
    except FileNotFoundError as error:
        raise EnvironmentBuildError(
            "the uv program is missing", hint="reinstall this package: its dependency uv is damaged"
        ) from error


def installer_variables() -> dict[str, str]:
    """Return uv's process environment, with pip's package sources."""
    environment = {key: value for key, value in os.environ.items() if key not in _REMOVED_VARIABLES}
    return environment | package_source_variables(environment)


def run_uv(
    arguments: Sequence[str],
    *,
    folder: Path,
    variables: dict[str, str],
    on_line: Callable[[str], None] | None = None,
    on_poll: Callable[[], None] | None = None,
) -> None:
    """Run uv to its end; it is killed with this process.

    Args:
        folder: working directory; uv would read a project in it.
        on_line: receives each line of uv's output, from another thread.
        on_poll: is called a few times a second while uv runs.

    Raises:
        EnvironmentBuildError: uv failed; the message quotes its last lines and has a hint.
    """
    command = [str(find_uv()), *arguments]
    lines: deque[str] = deque(maxlen=200)
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Otherwise the uv of a killed build would write to the folder of the next build.
        preexec_fn=die_with_parent,
    )
    reader = threading.Thread(target=_read, args=(process, lines, on_line), daemon=True)
    reader.start()
    try:
        while not _has_ended(process):
            if on_poll is not None:
                on_poll()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()
        if process.stdout is not None:
            process.stdout.close()
    if process.returncode != 0:
        raise _failure(command, process.returncode, list(lines))


def hint_for(output: str) -> str:
    """Return a hint for a failed installation, from uv's output."""
    for pattern, hint in _HINTS:
        if re.search(pattern, output, re.IGNORECASE):
            return hint
    return "run `prepare doctor`; uv's own message is above"


def _read(
    process: subprocess.Popen[str], lines: deque[str], on_line: Callable[[str], None] | None
) -> None:
    if process.stdout is None:
        return
    for line in process.stdout:
        lines.append(line.rstrip())
        if on_line is not None:
            on_line(line.strip())


def _has_ended(process: subprocess.Popen[str]) -> bool:
    try:
        process.wait(timeout=_POLL_INTERVAL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _failure(command: list[str], code: int, lines: list[str]) -> EnvironmentBuildError:
    output = [line for line in lines if line and not line.startswith((" + ", " - "))]
    quoted = "\n".join(f"    {line}" for line in output[-_LINES_QUOTED:])
    return EnvironmentBuildError(
        f"uv could not install (exit code {code}). Its last lines:\n{quoted}",
        where=" ".join(command),
        hint=hint_for("\n".join(output)),
    )
