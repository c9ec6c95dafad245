"""Build of a managed environment: uv venv, lock, plugins, checks, record."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from pipeline.core.errors import EnvironmentBuildError
from pipeline.core.events import Progress
from pipeline.environments.definition import EnvironmentDefinition
from pipeline.environments.health import differences_from_lock, torch_fault
from pipeline.environments.installer import installer_variables, run_uv
from pipeline.environments.interpreter import describe, import_modules
from pipeline.environments.package_sources import has_cpu_torch
from pipeline.environments.record import (
    EnvironmentRecord,
    folder_bytes,
    installed_versions,
    interpreter_path,
    write_record,
)

_SIZE_UNITS = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}


def build(definition: EnvironmentDefinition, folder: Path, progress: Progress) -> EnvironmentRecord:
    """Build the environment in `folder`, replacing its contents; the caller holds the lock.

    Raises:
        EnvironmentBuildError: the disk is too small, uv failed, or the packages do not work. The
        incomplete folder is removed.
    """
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    require_disk(definition, folder.parent)
    try:
        _install(definition, folder, progress)
        versions = _check_versions(definition, folder)
        progress.advance(f"check {definition.key}", 0, 1, "imports")
        _check_imports(definition, folder)
        progress.advance(f"check {definition.key}", 1, 1, "imports")
    except EnvironmentBuildError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    record = EnvironmentRecord(
        key=definition.key,
        identity=definition.identity,
        python=describe(interpreter_path(folder))[0],
        versions=versions,
        size_bytes=folder_bytes(folder),
        seconds=round(time.monotonic() - started, 1),
        built=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_record(folder, record)
    return record


def require_disk(definition: EnvironmentDefinition, folder: Path) -> None:
    """Raise EnvironmentBuildError if the disk cannot hold the environment."""
    free = shutil.disk_usage(folder).free
    if free < definition.disk_bytes:
        raise EnvironmentBuildError(
            f"the {definition.key} environment needs {definition.disk_bytes / 1e9:.1f} GB of disk "
            f"and {free / 1e9:.1f} GB are free",
            where=str(folder),
            hint="free some (`prepare gc` may help), or set PREPARE_HOME to a larger disk",
        )


def _install(definition: EnvironmentDefinition, folder: Path, progress: Progress) -> None:
    variables = installer_variables()
    base = folder.parent
    # The running interpreter, because the identity includes its version.
    run_uv(
        ["venv", "--no-project", "--python", sys.executable, str(folder)],
        folder=base,
        variables=variables,
    )
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{line}\n" for line in _constraints(definition)))
    into = ["pip", "install", "--python", str(interpreter_path(folder))]
    overrides = ["--overrides", str(definition.overrides)] if definition.overrides else []
    watcher = InstallProgress(definition, folder, progress)
    run_uv(
        [
            *into,
            *("-r", str(definition.lock), "--constraint", str(constraints)),
            *overrides,
            *_torch_options(definition, variables),
        ],
        folder=base,
        variables=variables,
        on_line=watcher.read_line,
        on_poll=watcher.report,
    )
    watcher.report()
    for plugin in definition.plugins:
        # Build from a copy: the sources may be read-only, and must stay clean.
        with tempfile.TemporaryDirectory(prefix="prepare-plugin-") as scratch:
            copy = Path(scratch) / plugin.name
            shutil.copytree(plugin, copy, ignore=shutil.ignore_patterns("__pycache__"))
            run_uv([*into, "--no-deps", str(copy)], folder=base, variables=variables)


def _constraints(definition: EnvironmentDefinition) -> list[str]:
    """Exclude the CPU build of torch from a CUDA environment.

    A find-links folder may offer it for the CPU environments, and its version sorts higher.
    """
    torch = definition.pins.get("torch")
    return [f"torch!={torch}+cpu"] if torch and definition.needs_cuda_torch else []


def _torch_options(definition: EnvironmentDefinition, variables: dict[str, str]) -> list[str]:
    """Select PyTorch's own index for the CPU build, unless another source has it."""
    wanted = definition.accelerator == "cpu" and "torch" in definition.pins
    given = variables.get("UV_TORCH_BACKEND") or has_cpu_torch(variables.get("UV_FIND_LINKS", ""))
    return ["--torch-backend", "cpu"] if wanted and not given else []


class InstallProgress:
    """Progress from uv's output and the growing site-packages."""

    def __init__(self, definition: EnvironmentDefinition, folder: Path, progress: Progress) -> None:
        self._key = definition.key
        self._total = len(definition.pins)
        self._folder = folder
        self._progress = progress
        self._sizes: dict[str, float] = {}
        self._downloaded: set[str] = set()
        self._installed = 0

    def read_line(self, line: str) -> None:
        """Parse one line of uv's output ("Downloading numpy (16.1MiB)")."""
        begun = re.match(r"Downloading (\S+) \(([\d.]+)([KMG]iB)\)", line)
        ended = re.match(r"Downloaded (\S+)", line)
        if begun:
            self._sizes[begun[1]] = float(begun[2]) * _SIZE_UNITS[begun[3]]
        elif ended:
            self._downloaded.add(ended[1])

    def report(self) -> None:
        sizes, downloaded = dict(self._sizes), set(self._downloaded)
        if downloaded < sizes.keys():
            arrived = sum(size for name, size in sizes.items() if name in downloaded)
            total = round(sum(sizes.values()))
            self._progress.advance(f"download {self._key}", round(arrived), total, "MiB")
        installed = min(len(installed_versions(self._folder)), self._total)
        if installed != self._installed:
            self._installed = installed
            self._progress.advance(f"install {self._key}", installed, self._total, "packages")


def _check_versions(definition: EnvironmentDefinition, folder: Path) -> dict[str, str]:
    versions = installed_versions(folder)
    if wrong := differences_from_lock(definition, versions):
        raise EnvironmentBuildError(
            f"installed versions differ from the lock: {'; '.join(wrong[:5])}",
            where=str(definition.lock),
            hint="unset variables and uv settings that constrain versions, then try again",
        )
    return versions


def _check_imports(definition: EnvironmentDefinition, folder: Path) -> None:
    try:
        import_modules(interpreter_path(folder), definition.modules)
        if fault := torch_fault(definition, interpreter_path(folder)):
            raise EnvironmentBuildError(fault, where=str(folder))
    except EnvironmentBuildError as error:
        raise EnvironmentBuildError(
            f"the {definition.key} environment was installed but does not work: {error.message}",
            where=error.where,
            hint="run `prepare doctor`: a system library may be missing, or the CPU too "
            "old; or name an interpreter in the settings file",
        ) from error
