"""Settings of a machine or site, in contrast to those of one run.

The settings file is named by ``--settings`` or ``$PREPARE_SETTINGS``; the default is
``$XDG_CONFIG_HOME/prepare/settings.yaml``. It is optional. Its keys::

    home: ~/big-disk/prepare          # managed environments; $PREPARE_HOME takes precedence
    store: /shared/prepare-store      # $PREPARE_STORE takes precedence
    store_locks: trusted              # also where the file system may keep no locks
    slurm: {flags: [--gres=gpu:h100:1]}   # for --on slurm; and ray: {address: ..., gpus: 1}
    environments:
      serve: {python: /opt/vllm/bin/python}
    signing:
      private_key: ~/keys/signer.key  # for `--sign`; $PREPARE_PRIVATE_KEY takes precedence
      public_key: /etc/signer.pub     # versions without its signature are rejected
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from pipeline.core.file_digests import FileDigests
from pipeline.core.file_locks import refuse_local_locks
from pipeline.core.record import Record
from pipeline.core.store import Store
from pipeline.environments.definition import EnvironmentName
from pipeline.environments.settings_file import (
    absolute_from,
    find_settings_file,
    path_variable,
    xdg_folder,
)
from recipes.config_file import parse


class EnvironmentOverride(Record):
    """A site's interpreter that replaces a managed environment."""

    python: Path = Field(description="path of the Python interpreter")


class SigningKeys(Record):
    """Keys of registered versions, as PEM files of elliptic curve keys."""

    private_key: Path | None = Field(default=None, description="key for `--sign`")
    public_key: Path | None = Field(
        default=None, description="registered versions without its signature are rejected"
    )


class SlurmSettings(Record):
    """How `--on slurm` submits copies of a run."""

    flags: list[str] = Field(
        [],
        description="of sbatch for each copy, such as --partition=gpu, --gres=gpu:h100:1, "
        "--cpus-per-task=12, --time=4:00:00",
    )
    python: str | None = Field(
        None,
        description="interpreter with this prepare on the nodes; default: the one that submits",
    )

    @field_validator("flags")
    @classmethod
    def _are_flags(cls, flags: list[str]) -> list[str]:
        for flag in flags:
            if not re.match(r"--[a-z]", flag):
                raise ValueError(f"{flag!r} does not begin with '--'")
        return flags


class RaySettings(Record):
    """How `--on ray` starts copies of a run."""

    address: str = Field("auto", description="of the cluster's head; 'auto': of this machine")
    gpus: float = Field(1, ge=0, description="GPUs of each copy")
    cpus: float = Field(1, ge=0, description="cores of each copy")


StoreLocks = Literal["checked", "trusted"]


class Settings(Record):
    """Settings in force; every path is absolute."""

    home: Path = Field(description="folder of the managed environments")
    store: Path = Field(description="folder of the stages' outputs")
    store_locks: StoreLocks = Field(
        default="checked", description="trusted: use a file system that may keep no locks"
    )
    slurm: SlurmSettings = Field(default=SlurmSettings(), description="for `--on slurm`")
    ray: RaySettings = Field(default=RaySettings(), description="for `--on ray`")
    environments: dict[str, EnvironmentOverride] = Field(
        default_factory=dict, description="the site's interpreters, by environment name"
    )
    signing: SigningKeys = Field(default=SigningKeys(), description="keys of registered versions")

    @field_validator("store")
    @classmethod
    def _resolve_links(cls, store: Path) -> Path:
        return store.resolve()

    @property
    def digests(self) -> FileDigests:
        return FileDigests(self.home / "digests.json")

    def open_store(self) -> Store:
        """Return the store; raises StoreError if its file system may keep no locks."""
        if self.store_locks != "trusted":
            refuse_local_locks(self.store)
        return Store(self.store)


class SettingsFile(Record):
    """What a settings file may say; what it leaves out has a default."""

    home: Path | None = Field(default=None, description="folder of the managed environments")
    store: Path | None = Field(default=None, description="folder of the stages' outputs")
    store_locks: StoreLocks = Field(
        default="checked",
        description="trusted: use a file system that may keep no locks, such as FUSE or Lustre "
        "mounted with localflock",
    )
    slurm: SlurmSettings = Field(default=SlurmSettings(), description="for `--on slurm`")
    ray: RaySettings = Field(default=RaySettings(), description="for `--on ray`")
    environments: dict[EnvironmentName, EnvironmentOverride] = Field(
        default_factory=dict, description="interpreters of the site's own, by environment's name"
    )
    signing: SigningKeys = Field(default=SigningKeys(), description="keys of registered versions")


def load_settings(store: Path | None = None, public_key: Path | None = None) -> Settings:
    """Return the settings in force: arguments, then variables, then the settings file.

    Args:
        store: given with --store.
        public_key: registered versions must be signed with it.
    """
    file = find_settings_file()
    configured = parse(file, "settings file", SettingsFile) if file else SettingsFile()
    folder = file.parent if file else Path.cwd()
    home = find_home()
    store = (
        (store and absolute_from(Path.cwd(), store, "--store"))
        or path_variable("PREPARE_STORE")
        or (configured.store and absolute_from(folder, configured.store, f"{file}, key store"))
        or home / "store"
    )
    overrides = {}
    for name, override in configured.environments.items():
        python = absolute_from(folder, override.python, f"{file}, key environments.{name}.python")
        overrides[str(name)] = EnvironmentOverride(python=python)
    return Settings(
        home=home,
        store=store,
        store_locks=configured.store_locks,
        slurm=configured.slurm,
        ray=configured.ray,
        environments=overrides,
        signing=_find_keys(configured.signing, folder, file, public_key),
    )


def _find_keys(
    configured: SigningKeys, folder: Path, file: Path | None, public_key: Path | None
) -> SigningKeys:
    """Return absolute key paths; those in the settings file are relative to `folder`."""
    found = {
        name: key and absolute_from(folder, key, f"{file}, key signing.{name}")
        for name, key in (
            ("private_key", configured.private_key),
            ("public_key", configured.public_key),
        )
    }
    named = public_key and absolute_from(Path.cwd(), public_key, "--public-key")
    return SigningKeys(
        private_key=path_variable("PREPARE_PRIVATE_KEY") or found["private_key"],
        public_key=named or path_variable("PREPARE_PUBLIC_KEY") or found["public_key"],
    )


def find_home() -> Path:
    """Return the folder of the managed environments, as `load_settings` does."""
    file = find_settings_file()
    configured = parse(file, "settings file", SettingsFile) if file else SettingsFile()
    folder = file.parent if file else Path.cwd()
    return (
        path_variable("PREPARE_HOME")
        or (configured.home and absolute_from(folder, configured.home, f"{file}, key home"))
        or xdg_folder("CACHE", ".cache")
    )
