"""What a registry on the Hub keeps in the history branch of a model: one JSON document.

The branch moves only from the commit that the writer had seen, so two writers never lose each
other's part. Every state that the document was in stays a commit of the branch.
"""

from __future__ import annotations

from pydantic import Field

from artifacts.registry.history import HistoryEntry
from pipeline.core.record import Record


class RegisteredVersion(Record):
    """One version: where its files are, and what is known of it."""

    commit: str = Field(description="of the model repository, that holds its files")
    tags: dict[str, str] = Field(description="the tags prepare.*")


class Ledger(Record):
    """The versions of one model, the moves of its aliases, and how far those were carried out."""

    schema_version: int = 1
    applied: int = Field(0, description="number of the last entry that the aliases were set by")
    versions: dict[str, RegisteredVersion] = Field({}, description="by number")
    entries: tuple[HistoryEntry, ...] = Field((), description="losers too, by their numbers")

    def with_entry(self, entry: HistoryEntry) -> Ledger | None:
        """With the entry under the next number; None where it is in already."""
        if any(each.id == entry.id for each in self.entries):
            return None
        number = self.entries[-1].number + 1 if self.entries else 1
        numbered = entry.model_copy(update={"number": number})
        return self.model_copy(update={"entries": (*self.entries, numbered)})

    def with_applied(self, number: int) -> Ledger | None:
        """With that mark, lower ones too: a late process makes others look again by it."""
        return None if self.applied == number else self.model_copy(update={"applied": number})

    def with_version(self, number: str, version: RegisteredVersion) -> Ledger | None:
        """With the version, or its other tags; None where it is so already."""
        if self.versions.get(number) == version:
            return None
        return self.model_copy(update={"versions": self.versions | {number: version}})
