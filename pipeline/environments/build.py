"""Build of a managed environment, in place.

The record is last: a folder without one is incomplete.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field
from rich.filesize import decimal

from pipeline.environments.cuda_home import make_cuda_home
from pipeline.environments.definition import (
    SOURCE_BUILDS,
    EnvironmentDefinition,
    normalize,
)
from pipeline.environments.installer import (
    CPU_TORCH,
    has_cpu_torch,
    installer_variables,
    locked_python,
    run_uv,
)
from prepare.errors import EnvironmentBuildError
from prepare.events import Progress
from prepare.private_files import write_atomically
from prepare.process_environment import server_environment
from prepare.record import Record
from prepare.untrusted import MAX_RECORD_BYTES, parse_json, parse_record, read_regular

_ANSWER_TIMEOUT_S = 20
_IMPORT_TIMEOUT_S = 600

# torch's version file is read: importing torch takes seconds.
_DESCRIBE = """
import importlib.metadata, importlib.util, json, pathlib, runpy, sys
versions = {}
for found in importlib.metadata.distributions():
    versions.setdefault(found.name, found.version)
def exists(name):
    top, *below = name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not below:
        return spec is not None
    paths = [pathlib.Path(place, *below) for place in spec.submodule_search_locations or ()]
    return any(path.is_dir() or path.with_suffix(".py").is_file() for path in paths)
torch = importlib.util.find_spec("torch")
text = torch and torch.origin and pathlib.Path(torch.origin).with_name("version.py")
print(json.dumps({
    "python": sys.version,
    "versions": versions,
    "missing": [name for name in sys.argv[1:] if not exists(name)],
    "cuda": runpy.run_path(str(text)).get("cuda") if text and text.is_file() else None,
}))
"""


class Interpreter(Record):
    """Facts about an interpreter and its packages."""

    python: str = Field(description="its full version")
    versions: dict[str, str] = Field(description="version by normalized name of every package")
    missing: tuple[str, ...] = Field(description="required modules that it cannot find")
    cuda: str | None = Field(description="CUDA version of its torch; None for a CPU build")


def describe(python: Path, modules: Sequence[str] = ()) -> Interpreter:
    """Describe `python` without importing top-level modules, or raise EnvironmentBuildError."""
    try:
        interpreter = Interpreter.model_validate(parse_json(_run(python, _DESCRIBE, modules)))
    except ValueError as error:
        raise EnvironmentBuildError(
            "the interpreter does not behave like Python",
            where=str(python),
            hint="correct its path in the settings file, key environments",
        ) from error
    versions = {normalize(name): version for name, version in interpreter.versions.items()}
    return interpreter.model_copy(update={"versions": versions})


def fault_of(interpreter: Interpreter, definition: EnvironmentDefinition) -> str:
    """Return what an interpreter lacks for an environment, or ''."""
    if interpreter.missing:
        tops = sorted({name.partition(".")[0] for name in interpreter.missing})
        has = [f"{top} {interpreter.versions[top]}" for top in tops if top in interpreter.versions]
        lacks = f"lacks {', '.join(interpreter.missing)}"
        other = f"has {', '.join(has)}, another version than this prepare uses: it "
        return (other if has else "") + lacks
    if definition.needs_cuda_torch and interpreter.cuda is None:
        return "lacks a torch that is built for CUDA (torch.version.cuda is None)"
    return ""


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
        last = [f"\n    {line}" for line in answer.stderr.strip().splitlines()[-6:]]
        raise EnvironmentBuildError(
            f"a check in a Python interpreter failed with exit code {answer.returncode}"
            + (f". Its last lines:{''.join(last)}" if last else " and no words"),
            where=str(python),
            hint="run `prepare doctor`: a system library may be missing, or the CPU too old; or "
            "name an interpreter in the settings file",
        )
    return answer.stdout


RECORD_NAME = "environment.json"
_TOLD = ("Downloading", "Building", "Prepared", "Installed")
_FOR_ALL_TO_READ = 0o644


class EnvironmentRecord(Record):
    """Facts about a complete managed environment."""

    key: str = Field(description="name of the environment, such as serve-cpu")
    identity: str = Field(description="digest of its definition")
    python: str = Field(description="full version of its Python")
    versions: dict[str, str] = Field(description="version by normalized name of every package")
    size_bytes: int = Field(description="disk usage after the build")
    built: str = Field(description="UTC time, ISO 8601")


def read_record(folder: Path) -> EnvironmentRecord | None:
    """Return an environment's valid record, or None."""
    try:
        return parse_record(read_regular(folder / RECORD_NAME, MAX_RECORD_BYTES), EnvironmentRecord)
    except (OSError, ValueError):
        return None


def interpreter_path(folder: Path) -> Path:
    """Return the interpreter in `folder`."""
    return folder / "bin" / "python"


def build(definition: EnvironmentDefinition, folder: Path, progress: Progress) -> EnvironmentRecord:
    """Build the environment in `folder`, under the caller's lock.

    EnvironmentBuildError: the disk is full, uv failed, or the packages do not work. The folder is
    then removed.
    """
    # The record first: an interrupted removal leaves an incomplete build.
    (folder / RECORD_NAME).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < definition.disk_bytes:
        raise EnvironmentBuildError(
            f"the {definition.key} environment needs {decimal(definition.disk_bytes)} of disk "
            f"and {decimal(free)} are free",
            where=str(folder.parent),
            hint="free some (`prepare gc` may help), or set PREPARE_HOME to a larger disk",
        )
    try:
        _install(definition, folder, progress)
        record = _check(definition, folder)
    except EnvironmentBuildError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    make_cuda_home(folder)
    write_atomically(folder / RECORD_NAME, record.model_dump_json(indent=2) + "\n")
    (folder / RECORD_NAME).chmod(_FOR_ALL_TO_READ)  # like the environment itself
    return record


def _install(definition: EnvironmentDefinition, folder: Path, progress: Progress) -> None:
    def tell(line: str) -> None:
        if line.startswith(_TOLD):
            progress.note(f"{definition.key}: {line}")

    cache = folder.parents[1] / "uv-cache"
    new = ("venv", "--no-project", "--python", locked_python(), str(folder))
    run_uv(new, folder=folder.parent, cache=cache)
    wheels = installer_variables().get("UV_FIND_LINKS", "")
    if definition.pins.get("torch", "").endswith("+cpu") and not has_cpu_torch(wheels):
        wheels = ",".join(filter(None, [wheels, CPU_TORCH]))
    into = ("--python", str(interpreter_path(folder)))
    run_uv(
        [
            *("pip", "sync", *into, str(definition.lock)),
            *("--require-hashes", "--build-constraint", str(SOURCE_BUILDS)),
            *(("--find-links", wheels) if wheels else ()),
        ],
        folder=folder.parent,
        cache=cache,
        on_line=tell,
    )
    for plugin in definition.plugins:
        # Build from a copy: the sources may be read-only, and must stay clean.
        with tempfile.TemporaryDirectory(prefix="prepare-plugin-") as scratch:
            copy = Path(scratch) / plugin.name
            shutil.copytree(plugin, copy, ignore=shutil.ignore_patterns("__pycache__"))
            # uv builds it alone, with nothing from an index.
            own = ("pip", "install", *into, "--no-deps", "--no-index", str(copy))
            run_uv(own, folder=folder.parent, cache=cache)


def _check(definition: EnvironmentDefinition, folder: Path) -> EnvironmentRecord:
    python = interpreter_path(folder)
    interpreter = describe(python, definition.modules)
    # Finds missing shared libraries, too.
    _run(python, f"import {', '.join(definition.modules)}", (), _IMPORT_TIMEOUT_S)
    if fault := fault_of(interpreter, definition):
        raise EnvironmentBuildError(
            f"the {definition.key} environment was installed, but {fault}",
            where=str(folder),
            hint="run `prepare doctor`, or name an interpreter in the settings file",
        )
    return EnvironmentRecord(
        key=definition.key,
        identity=definition.identity,
        python=interpreter.python,
        versions=interpreter.versions,
        size_bytes=folder_bytes(folder),
        built=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def folder_bytes(folder: Path) -> int:
    """Return a folder's disk usage; hard links count once."""
    files = [Path(parent) / name for parent, _, names in os.walk(folder) for name in names]
    blocks = {facts.st_ino: facts.st_blocks for facts in map(Path.lstat, files)}
    return 512 * sum(blocks.values())
