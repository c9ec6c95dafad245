"""Record of a complete managed environment, and its installed packages.

An environment is built in place, because its paths are absolute. ``environment.json`` is written
last and atomically: a folder without it is incomplete.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, ValidationError

from pipeline.core.record import Record
from pipeline.core.store import write_atomically
from pipeline.environments.definition import normalize

RECORD_NAME = "environment.json"
SCHEMA_VERSION = 1
_FOR_ALL_TO_READ = 0o644


class EnvironmentRecord(Record):
    """Facts about a complete managed environment."""

    schema_version: int = Field(default=SCHEMA_VERSION, description="of this record")
    key: str = Field(description="name of the environment, such as serve-cpu")
    identity: str = Field(description="digest of its definition")
    python: str = Field(description="full version of its Python")
    versions: dict[str, str] = Field(description="version by normalized name of every package")
    size_bytes: int = Field(description="disk usage after the build")
    seconds: float = Field(description="wall time of the build")
    built: str = Field(description="UTC time, ISO 8601")


def read_record(folder: Path) -> EnvironmentRecord | None:
    """Return the record in an environment's folder; None if missing or damaged."""
    try:
        return EnvironmentRecord.model_validate_json((folder / RECORD_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def write_record(folder: Path, record: EnvironmentRecord) -> None:
    """Write the record atomically, which completes the environment.

    It is readable by all users, like the environment itself.
    """
    write_atomically(folder / RECORD_NAME, record.model_dump_json(indent=2) + "\n")
    (folder / RECORD_NAME).chmod(_FOR_ALL_TO_READ)


def interpreter_path(folder: Path) -> Path:
    """Return the interpreter of the environment in `folder`."""
    return folder / "bin" / "python"


def installed_versions(folder: Path) -> dict[str, str]:
    """Return version by normalized name of each installed package.

    Only names of metadata folders (``name-version.dist-info``) are read, which is fast enough for
    every use.
    """
    found = {}
    for metadata in folder.glob("lib/python3*/site-packages/*.dist-info/METADATA"):
        name, _, version = metadata.parent.name.removesuffix(".dist-info").partition("-")
        found[normalize(name)] = version
    return found


def folder_bytes(folder: Path) -> int:
    """Return a folder's disk usage; hard links count once."""
    seen: set[int] = set()
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            facts = (Path(parent) / name).lstat()
            if facts.st_ino not in seen:
                seen.add(facts.st_ino)
                total += facts.st_blocks * 512
    return total
