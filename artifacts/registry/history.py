"""Alias changes and what their history implies; pure functions.

An entry names its predecessor. Only the first entry after that predecessor is valid. Aliases and
their earlier targets follow from the valid entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field, model_validator

from pipeline.core.record import Record

CANDIDATE = "candidate"
CHAMPION = "champion"
PREVIOUS = "previous"

Action = Literal["promote", "override", "rollback", "outside"]


@dataclass(frozen=True)
class ChangeReason:
    """Reason of an alias change, for the history."""

    action: Action
    who: str
    run: str = ""
    verdict: str = ""
    reason: str = ""


@dataclass(frozen=True)
class AliasChange:
    """An alias and its new version."""

    alias: str  # that moves
    version: str  # it will point to
    # version that it points to now, as far as the mover knows; None for 'to none'. When that is not
    # so any more, nothing moves.
    replaces: str | None
    cause: ChangeReason
    # gets the version that `alias` leaves; None leaves no trace but the history
    previous_alias: str | None = None


class HistoryEntry(Record):
    """One alias change; together the entries determine the aliases."""

    schema_version: int = 1
    number: int = Field(0, ge=0, description="place in the history; given by the registry")
    id: str = Field(description="of the attempt, so that who made it knows it again")
    after: int = Field(
        description="number of the last entry that held when this was made; one that comes second "
        "to the same number has lost, and changed nothing"
    )
    action: Action = Field(description="outside: found moved by something other than prepare")
    alias: str = Field(description="the alias that this is about")
    previous_alias: str | None = Field(description="the alias of the version before it")
    version: str | None = Field(description="it points to from now on; None: to none")
    replaced: str | None = Field(description="version that it pointed to before")
    changes: dict[str, str | None] = Field(description="every alias that changes, and to what")
    when: str = Field(description="UTC, ISO 8601")
    who: str
    run: str = Field(description="id of the run that the evidence is of; may be empty")
    verdict: str = Field(description="of the gates: pass, fail or undecided; may be empty")
    reason: str

    @model_validator(mode="after")
    def _says_one_thing(self) -> HistoryEntry:
        if self.alias in self.changes and self.changes[self.alias] != self.version:
            raise ValueError("it says of its alias that it points to two versions")
        return self


@dataclass(frozen=True)
class AliasState:
    """State of the aliases after all entries."""

    last: int = 0  # number of the last entry that holds
    held: tuple[HistoryEntry, ...] = ()  # the entries that hold
    aliases: Mapping[str, str] = field(default_factory=dict)  # version by alias
    # by alias, the versions it passed, from the first to where it is now; rolling back goes this
    # way back
    ways: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def before(self, alias: str) -> tuple[str, ...]:
        """Return the versions that rollbacks of the alias return to; the last is the next."""
        way = self.ways.get(alias, ())
        return way[:-1] if way and way[-1] == self.aliases.get(alias) else way

    def last_move(self, alias: str) -> HistoryEntry | None:
        return next((e for e in reversed(self.held) if alias in e.changes), None)


def replay(entries: Iterable[HistoryEntry]) -> AliasState:
    """Return the state after these entries, in the order of their numbers.

    An entry is valid if no valid entry is between it and its predecessor. (`>=`, because a user may
    have deleted the predecessor.)
    """
    last = 0
    held: list[HistoryEntry] = []
    aliases: dict[str, str] = {}
    ways: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        if entry.after < last:
            continue
        last = entry.number
        held.append(entry)
        for alias, version in entry.changes.items():
            aliases.pop(alias, None)
            if version is not None:
                aliases[alias] = version
        ways[entry.alias] = _way_after(ways.get(entry.alias, ()), entry)
    return AliasState(last, tuple(held), aliases, ways)


def _way_after(way: tuple[str, ...], entry: HistoryEntry) -> tuple[str, ...]:
    if entry.action == "rollback" and entry.version is not None:
        # From no version at all, the last one that there was is the one to go back to.
        back = way_to(entry.version, way if entry.replaced is None else way[:-1])
        if back:
            return back
    if entry.action == "outside" and entry.previous_alias in entry.changes:
        # A user said where to go back to.
        before = entry.changes[entry.previous_alias]
        top = (entry.version,) if entry.version is not None else way[-1:]
        kept = way if entry.version != entry.replaced else way[:-1]
        known = before is None or before == entry.version or kept[-1:] == (before,)
        return (*kept, *(() if known else (str(before),)), *top)
    return way if entry.version is None or way[-1:] == (entry.version,) else (*way, entry.version)


def way_to(version: str, way: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path up to its last visit of the version, or ()."""
    places = [place for place, each in enumerate(way) if each == version]
    return way[: places[-1] + 1] if places else ()
