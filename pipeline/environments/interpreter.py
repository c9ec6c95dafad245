"""Queries of a Python interpreter, each in a child process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from pipeline.core.errors import EnvironmentBuildError
from pipeline.core.process_environment import server_environment
from pipeline.core.record import Record
from pipeline.core.untrusted import parse_json

_ANSWER_TIMEOUT_S = 20
_IMPORT_TIMEOUT_S = 600

# torch's version file is read: importing torch takes seconds.
_DESCRIBE = """
import importlib.metadata, importlib.util, json, pathlib, runpy, sys
versions = {}
for found in importlib.metadata.distributions():
    versions.setdefault(found.name, found.version)
torch = importlib.util.find_spec("torch")
text = torch and torch.origin and pathlib.Path(torch.origin).with_name("version.py")
print(json.dumps({
    "python": sys.version,
    "versions": versions,
    "missing": [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None],
    "cuda": runpy.run_path(str(text)).get("cuda") if text and text.is_file() else None,
}))
"""
_IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


class Interpreter(Record):
    """Facts about an interpreter and its packages."""

    python: str = Field(description="its full version")
    versions: dict[str, str] = Field(description="version by name of every package")
    missing: tuple[str, ...] = Field(description="required modules that it cannot find")
    cuda: str | None = Field(description="CUDA version of its torch; None for a CPU build")


def describe(python: Path, modules: Sequence[str] = ()) -> Interpreter:
    """Describe `python`; import none of the top-level modules that are looked for.

    Raises:
        EnvironmentBuildError: it does not start, or does not behave like Python.
    """
    try:
        return Interpreter.model_validate(parse_json(_run(python, _DESCRIBE, modules)))
    except (ValueError, ValidationError) as error:
        raise EnvironmentBuildError(
            "the interpreter does not behave like Python",
            where=str(python),
            hint="correct its path in the settings file, key environments",
        ) from error


def import_modules(python: Path, modules: Sequence[str]) -> None:
    """Import the modules, which also finds missing shared libraries; takes seconds."""
    _run(python, _IMPORT, modules, seconds=_IMPORT_TIMEOUT_S)


def _run(
    python: Path, code: str, arguments: Sequence[str], seconds: int = _ANSWER_TIMEOUT_S
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
