"""The models that a store registered, for garbage collection: `STORE/registries.jsonl`."""

from __future__ import annotations

import os

from pydantic import Field

from prepare.errors import StoreError
from prepare.private_files import open_log
from prepare.record import Record
from prepare.store import Store
from prepare.untrusted import MAX_RECORD_BYTES, parse_record, read_regular

REGISTRIES = "registries.jsonl"


class Registration(Record):
    """One line of `registries.jsonl`."""

    registry: str
    name: str
    run: str
    registered: bool = Field(description="false: it was about to be")


def registrations(store: Store) -> list[Registration]:
    """Return what this store registered; StoreError for a damaged file."""
    file = store.root / REGISTRIES
    try:
        lines = read_regular(file, MAX_RECORD_BYTES).split(b"\n")
        # A kill may leave a half line, whose registration never began.
        return [parse_record(line, Registration) for line in lines if line.endswith(b"}")]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StoreError(
            f"the list of registries cannot be read: {error}",
            where=str(file),
            hint="put the damaged line right: each has registry, name, run and registered",
        ) from error


def note_registration(store: Store, told: Registration) -> None:
    """Add a line durably, unless it is there."""
    if told in registrations(store):
        return
    with open_log(store.root / REGISTRIES) as file:
        file.write(f"\n{told.model_dump_json()}\n".encode())
        file.flush()
        os.fsync(file.fileno())
