"""Asks a Python interpreter about itself, by running it; nothing is imported here."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import EnvironmentBuildError

_SECONDS_TO_ANSWER = 120
_SECONDS_TO_IMPORT = 600

_FIND_MODULES = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))
"""

_DESCRIBE = """
import importlib.metadata, json, sys
versions = {}
for found in importlib.metadata.distributions():
    versions.setdefault(found.name, found.version)
print(json.dumps({"python": sys.version, "versions": versions}))
"""

_IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def missing_modules(python: Path, modules: Sequence[str]) -> list[str]:
    """Those of the top-level `modules` that `python` cannot find; none of them is imported.

    Raises:
        EnvironmentBuildError: the interpreter does not start.
    """
    return [str(name) for name in json.loads(_run(python, _FIND_MODULES, modules))]


def describe(python: Path) -> tuple[str, dict[str, str]]:
    """The interpreter's full version, and version by name of every package that it sees.

    Raises:
        EnvironmentBuildError: the interpreter does not start.
    """
    answer: dict[str, Any] = json.loads(_run(python, _DESCRIBE))
    return str(answer["python"]), dict(answer["versions"])


def import_modules(python: Path, modules: Sequence[str]) -> None:
    """Import `modules` for real, which also finds missing shared libraries; takes seconds.

    Raises:
        EnvironmentBuildError: one of them does not import.
    """
    _run(python, _IMPORT, modules, seconds=_SECONDS_TO_IMPORT)


def _run(
    python: Path, code: str, arguments: Sequence[str] = (), seconds: int = _SECONDS_TO_ANSWER
) -> str:
    """Standard output of `code`, run isolated from PYTHONPATH and from the current folder."""
    # vLLM and others draw banners and phone home unless told not to.
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    try:
        answer = subprocess.run(
            [str(python), "-I", "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, **quiet},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentBuildError(
            f"a Python interpreter does not answer: {error}", where=str(python)
        ) from error
    if answer.returncode != 0:
        last = "\n".join(f"    {line}" for line in answer.stderr.strip().splitlines()[-6:])
        raise EnvironmentBuildError(
            f"a check in a Python interpreter failed. Its last lines:\n{last}", where=str(python)
        )
    return answer.stdout
