"""Settings of a machine or site, in contrast to those of one run.

``--settings`` or ``$PREPARE_SETTINGS`` names the optional file; the default is
``$XDG_CONFIG_HOME/prepare/settings.yaml``. Its keys::

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
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from pipeline.environments.definition import environment_names
from pipeline.environments.settings_file import (
    absolute_from,
    find_settings_file,
    path_variable,
    xdg_folder,
)
from prepare.credentials import strip_credentials
from prepare.digest import FileDigests
from prepare.file_locks import refuse_local_locks
from prepare.record import Record
from prepare.store import Store
from recipes.config_file import parse


def _declared(name: str) -> str:
    if name not in (known := environment_names()):
        raise ValueError(f"'{name}' is no environment: {', '.join(known)}")
    return name


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
                raise ValueError(f"{flag.partition('=')[0]!r} does not begin with '--'")
        return flags


class RaySettings(Record):
    """How `--on ray` starts copies of a run."""

    address: str = Field("auto", description="of the cluster's head; 'auto': of this machine")
    gpus: float = Field(1, ge=0, description="GPUs of each copy")
    cpus: float = Field(1, ge=0, description="cores of each copy")


class SettingsFile(Record):
    """A settings file; missing keys have defaults."""

    home: Path | None = Field(default=None, description="folder of the managed environments")
    store: Path | None = Field(default=None, description="folder of the stages' outputs")
    store_locks: Literal["checked", "trusted"] = Field(
        default="checked",
        description="trusted: use a file system that may keep no locks, such as FUSE or Lustre "
        "mounted with localflock",
    )
    slurm: SlurmSettings = Field(default=SlurmSettings(), description="for `--on slurm`")
    ray: RaySettings = Field(default=RaySettings(), description="for `--on ray`")
    environments: dict[Annotated[str, AfterValidator(_declared)], EnvironmentOverride] = Field(
        default_factory=dict, description="interpreters of the site's own, by environment's name"
    )
    signing: SigningKeys = Field(default=SigningKeys(), description="keys of registered versions")


class Settings(SettingsFile):
    """Settings in force; every path is absolute."""

    home: Path
    store: Path

    @field_validator("store")
    @classmethod
    def _resolve_links(cls, store: Path) -> Path:
        return store.resolve()

    @property
    def digests(self) -> FileDigests:
        return FileDigests(self.home / "digests.json")

    def registry_uri(self, given: str | None) -> str:
        """Return the given registry, or the store's own."""
        if given:
            return strip_credentials(given)
        return f"sqlite:///{self.store / 'registry.db'}"

    def open_store(self) -> Store:
        if self.store_locks != "trusted":
            refuse_local_locks(self.store)
        return Store(self.store)


def load_settings(store: Path | None = None, public_key: Path | None = None) -> Settings:
    """Return the settings in force: arguments, variables, then the file.

    Registered versions must be signed with `public_key`.
    """
    file = find_settings_file()
    told = parse(file, "settings file", SettingsFile) if file else SettingsFile()

    def find(
        key: str, path: Path | None, variable: str = "", given: Path | None = None
    ) -> Path | None:
        """Return a key's path; the file's are relative to its folder."""
        if given is not None:
            option = key.rpartition(".")[2].replace("_", "-")
            return absolute_from(Path.cwd(), given, f"--{option}")
        if variable and (path_of_variable := path_variable(variable)):
            return path_of_variable
        return path and file and absolute_from(file.parent, path, f"{file}, key {key}")

    home = find("home", told.home, "PREPARE_HOME") or xdg_folder("CACHE", ".cache")
    keys = told.signing
    return Settings(
        **{name: getattr(told, name) for name in ("store_locks", "slurm", "ray")},
        home=home,
        store=find("store", told.store, "PREPARE_STORE", store) or home / "store",
        environments={
            name: EnvironmentOverride(python=path)
            for name, override in told.environments.items()
            if (path := find(f"environments.{name}.python", override.python))
        },
        signing=SigningKeys(
            private_key=find("signing.private_key", keys.private_key, "PREPARE_PRIVATE_KEY"),
            public_key=find(
                "signing.public_key", keys.public_key, "PREPARE_PUBLIC_KEY", public_key
            ),
        ),
    )
