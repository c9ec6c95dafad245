"""Queries of a Python interpreter, each in a child process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.core.errors import EnvironmentBuildError
from pipeline.core.process_environment import server_environment
from pipeline.core.untrusted.json import parse_json

_ANSWER_TIMEOUT_S = 20
_IMPORT_TIMEOUT_S = 600

_FIND_MODULES = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))
"""

# Read torch's version file: importing torch takes seconds.
_TORCH_CUDA = """
import importlib.util, json, pathlib, runpy
torch = importlib.util.find_spec("torch")
text = torch and pathlib.Path(torch.origin).with_name("version.py")
print(json.dumps(runpy.run_path(str(text)).get("cuda") if text and text.is_file() else None))
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
    """Return the top-level modules that `python` cannot find; import none of them."""
    return [str(name) for name in _query(python, _FIND_MODULES, list, modules)]


def torch_cuda(python: Path) -> str | None:
    """Return the CUDA version of `python`'s torch; None for a CPU build or without torch."""
    version = _query(python, _TORCH_CUDA, (str, type(None)))
    return None if version is None else str(version)


def describe(python: Path) -> tuple[str, dict[str, str]]:
    """Return the interpreter's full version, and the version of each package."""
    answer = _query(python, _DESCRIBE, dict)
    return str(answer.get("python")), dict(answer.get("versions") or {})


def import_modules(python: Path, modules: Sequence[str]) -> None:
    """Import the modules, which also finds missing shared libraries; takes seconds."""
    _run(python, _IMPORT, modules, seconds=_IMPORT_TIMEOUT_S)


def _query(
    python: Path, code: str, kind: type | tuple[type, ...], arguments: Sequence[str] = ()
) -> Any:
    try:
        value = parse_json(_run(python, code, arguments))
        if not isinstance(value, kind):
            raise ValueError("it is of another kind")
        return value
    except ValueError as error:
        raise EnvironmentBuildError(
            "the interpreter does not behave like Python",
            where=str(python),
            hint="correct its path in the settings file, key environments",
        ) from error


def _run(
    python: Path, code: str, arguments: Sequence[str] = (), seconds: int = _ANSWER_TIMEOUT_S
) -> str:
    try:
        answer = subprocess.run(
            [str(python), "-I", "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            env=server_environment(os.environ, {}),  # as it will be used
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentBuildError(
            f"a Python interpreter does not respond: {error}", where=str(python)
        ) from error
    if answer.returncode != 0:
        last = "\n".join(f"    {line}" for line in answer.stderr.strip().splitlines()[-6:])
        raise EnvironmentBuildError(
            f"a check in a Python interpreter failed. Its last lines:\n{last}", where=str(python)
        )
    return answer.stdout
