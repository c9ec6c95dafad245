"""The record that completes a managed environment, and what is really installed beside it.

An environment is built where it stays, since the paths in it are absolute. Its record,
``environment.json``, is written last and atomically: a folder without one is half-built.
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
    """What a finished managed environment is."""

    schema_version: int = Field(default=SCHEMA_VERSION, description="of this record")
    key: str = Field(description="which environment, such as serve-cpu")
    identity: str = Field(description="digest of the definition that it was built from")
    python: str = Field(description="full version of its Python")
    versions: dict[str, str] = Field(description="version by normalized name of every package")
    size_bytes: int = Field(description="disk that it took when it was built")
    seconds: float = Field(description="wall time of the build")
    built: str = Field(description="UTC time, ISO 8601")


def read_record(folder: Path) -> EnvironmentRecord | None:
    """The record in an environment's folder; None when it is missing or not whole."""
    try:
        return EnvironmentRecord.model_validate_json((folder / RECORD_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def write_record(folder: Path, record: EnvironmentRecord) -> None:
    """Complete the environment: write its record whole or not at all.

    Whoever may read the environment may read it, too: an image's is used by any user.
    """
    write_atomically(folder / RECORD_NAME, record.model_dump_json(indent=2) + "\n")
    (folder / RECORD_NAME).chmod(_FOR_ALL_TO_READ)


def interpreter_path(folder: Path) -> Path:
    """The interpreter of the environment in `folder`."""
    return folder / "bin" / "python"


def installed_versions(folder: Path) -> dict[str, str]:
    """Version by normalized name of every package whose metadata lies in the environment.

    Read from the metadata folders' names (``name-version.dist-info``), which is quick enough to
    do on every use.
    """
    found = {}
    for metadata in folder.glob("lib/python3*/site-packages/*.dist-info/METADATA"):
        name, _, version = metadata.parent.name.removesuffix(".dist-info").partition("-")
        found[normalize(name)] = version
    return found


def folder_bytes(folder: Path) -> int:
    """Disk that a folder takes; a file with several names in it counts once."""
    seen: set[int] = set()
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            facts = (Path(parent) / name).lstat()
            if facts.st_ino not in seen:
                seen.add(facts.st_ino)
                total += facts.st_blocks * 512
    return total
