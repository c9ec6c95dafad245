"""The JSON document in the history branch of a model on the Hub.

The branch moves only from the commit that the writer read, so concurrent writers lose nothing.
"""

from __future__ import annotations

from pydantic import Field

from artifacts.registry.history import HistoryEntry
from pipeline.core.record import Record


class RegisteredVersion(Record):
    """One version: its commit and its facts."""

    commit: str = Field(description="of the model repository, that holds its files")
    tags: dict[str, str] = Field(description="the tags prepare.*")


class Ledger(Record):
    """A model's versions, its alias changes, and the last applied one."""

    schema_version: int = 1
    applied: int = Field(0, description="number of the last entry that the aliases were set by")
    versions: dict[str, RegisteredVersion] = Field({}, description="by number")
    entries: tuple[HistoryEntry, ...] = Field((), description="losers too, by their numbers")

    def with_entry(self, entry: HistoryEntry) -> Ledger | None:
        """Return it with the entry under the next number, or None if it has the entry."""
        if any(each.id == entry.id for each in self.entries):
            return None
        number = self.entries[-1].number + 1 if self.entries else 1
        numbered = entry.model_copy(update={"number": number})
        return self.model_copy(update={"entries": (*self.entries, numbered)})

    def with_applied(self, number: int) -> Ledger | None:
        """Return it with that number; a lower number makes other processes check again."""
        return None if self.applied == number else self.model_copy(update={"applied": number})

    def with_version(self, number: str, version: RegisteredVersion) -> Ledger | None:
        """Return it with the version or its other tags, or None if nothing changes."""
        if self.versions.get(number) == version:
            return None
        return self.model_copy(update={"versions": self.versions | {number: version}})
