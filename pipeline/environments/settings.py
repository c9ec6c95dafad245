"""What holds for this machine or site rather than for one run: folders and interpreters.

The settings file is the first of: ``$PREPARE_SETTINGS``, ``prepare.yaml`` in the current folder,
``$XDG_CONFIG_HOME/prepare/settings.yaml``. None is needed. It may say::

    home: ~/big-disk/prepare          # managed environments; $PREPARE_HOME wins over it
    store: /shared/prepare-store      # or s3://bucket/prefix; $PREPARE_STORE wins over it
    executor: local                   # where stages run; or {kind: ray, address: ...}
    environments:
      serve: {python: /opt/vllm/bin/python}
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from pipeline.core.errors import UsageError
from pipeline.core.file_digests import FileDigests
from pipeline.core.object_store import check_url, is_url
from pipeline.core.origin import cache_folder
from pipeline.core.record import Record
from pipeline.core.user_path import user_path
from pipeline.environments.definition import EnvironmentName
from recipes.described_file import parse


class EnvironmentOverride(Record):
    """An interpreter of the site's own, used instead of a managed environment."""

    python: Path = Field(description="path of the Python interpreter")


def _as_mapping(executor: Any) -> Any:
    """A kind alone stands for an executor of that kind with nothing more said."""
    return {"kind": executor} if isinstance(executor, str) else executor


# Its keys are checked by the executor of that kind, see pipeline/run/executors/__init__.py.
AskedExecutor = Annotated[dict[str, Any], BeforeValidator(_as_mapping)]


class Settings(Record):
    """What holds for this machine or site; every path is absolute."""

    home: Path = Field(description="folder of the managed environments")
    store: Path = Field(
        description="folder of the stages' outputs, or this node's cache of an object store's"
    )
    executor: AskedExecutor = Field(
        default={"kind": "local"}, description="where stages run: its kind, or a mapping with it"
    )
    environments: dict[str, EnvironmentOverride] = Field(
        default_factory=dict, description="interpreters of the site's own, by environment's name"
    )

    @field_validator("store")
    @classmethod
    def _is_itself(cls, store: Path) -> Path:
        """Not a link to it, which may point elsewhere tomorrow: records name the store."""
        return store.resolve()

    @property
    def digests(self) -> FileDigests:
        """The digests of files that this machine remembers."""
        return FileDigests(self.home / "digests.json")


class SettingsFile(Record):
    """What a settings file may say; what it leaves out has a default."""

    home: Path | None = Field(default=None, description="folder of the managed environments")
    store: str | None = Field(
        default=None, description="folder of the stages' outputs, or URL in an object store"
    )
    executor: AskedExecutor = Field(
        default={"kind": "local"}, description="where stages run: its kind, or a mapping with it"
    )
    environments: dict[EnvironmentName, EnvironmentOverride] = Field(
        default_factory=dict, description="interpreters of the site's own, by environment's name"
    )


def load_settings(store: Path | None = None, executor: str | None = None) -> Settings:
    """The settings in force: arguments win over variables, they over the settings file.

    Args:
        executor: its kind; what the file says of an executor of that kind holds.
    """
    file = find_settings_file()
    said = parse(file, "settings file", SettingsFile) if file else SettingsFile()
    folder = file.parent if file else Path.cwd()
    home = find_home()
    store = (
        (store and _make_absolute(store, Path.cwd(), "--store"))
        or _store_at(
            os.environ.get("PREPARE_STORE"), Path.cwd(), "the variable PREPARE_STORE", home
        )
        or _store_at(said.store, folder, f"{file}, key store", home)
        or home / "store"
    )
    overrides = {}
    for name, override in said.environments.items():
        python = _make_absolute(override.python, folder, f"{file}, key environments.{name}.python")
        overrides[str(name)] = EnvironmentOverride(python=python)
    chosen = said.executor
    if executor is not None and executor != chosen.get("kind"):
        chosen = {"kind": executor}
    return Settings(home=home, store=store, executor=chosen, environments=overrides)


def find_home() -> Path:
    """The folder of the managed environments, as `load_settings` has it."""
    file = find_settings_file()
    said = parse(file, "settings file", SettingsFile) if file else SettingsFile()
    folder = file.parent if file else Path.cwd()
    return (
        _variable("PREPARE_HOME")
        or (said.home and _make_absolute(said.home, folder, f"{file}, key home"))
        or _xdg_folder("CACHE", ".cache")
    )


def find_settings_file() -> Path | None:
    """The settings file in force, if there is one."""
    named = _variable("PREPARE_SETTINGS")
    if named:
        if not named.is_file():
            raise UsageError(
                "PREPARE_SETTINGS names no file",
                where=str(named),
                cure="correct the variable, or unset it to use the default settings",
            )
        return named
    for candidate in (
        Path.cwd() / "prepare.yaml",
        _xdg_folder("CONFIG", ".config") / "settings.yaml",
    ):
        if candidate.is_file():
            return candidate
    return None


def _store_at(address: str | None, folder: Path, where: str, home: Path) -> Path | None:
    """The folder of that store, from `folder`, or this node's cache of it; None of no address."""
    if not address:
        return None
    if is_url(address):
        return cache_folder(check_url(address, where), home)
    return _make_absolute(Path(address), folder, where)


def _variable(name: str) -> Path | None:
    """A path from the process's environment; an empty one counts as unset."""
    value = os.environ.get(name)
    return _make_absolute(Path(value), Path.cwd(), f"the variable {name}") if value else None


def _xdg_folder(kind: str, default: str) -> Path:
    """This program's own folder for `kind`, after the XDG base directory specification."""
    base = os.environ.get(f"XDG_{kind}_HOME", "")
    # The specification has relative values ignored.
    root = (
        Path(base) if Path(base).is_absolute() else user_path(f"~/{default}", "the variable HOME")
    )
    return root / "prepare"


def _make_absolute(path: Path, folder: Path, where: str) -> Path:
    """`path` from `folder`, `~` expanded.

    Symbolic links stay: a virtual environment's python is one, and means its environment.
    """
    return (folder / user_path(path, where)).absolute()
