"""Atomic alias changes: one of two racing changes wins, also after a kill at any step.

Registries cannot compare and set an alias, but they give each number once. An entry in the history
names its predecessor, and only the first entry after that is valid. Appending an entry is the
promotion. The aliases follow from the entries, so the next process can set them after a kill.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Protocol

from artifacts.registry.history import (
    CANDIDATE,
    CHAMPION,
    PREVIOUS,
    AliasChange,
    AliasState,
    ChangeReason,
    HistoryEntry,
    replay,
    way_to,
)
from pipeline.core.errors import RecordedMoveError, RegistryError
from recipes.alias_names import RULE, can_be_alias

# So often in a row another process may come first before we give up.
ATTEMPTS = 20


class JournalStorage(Protocol):
    """What the journal needs of a registry; each method raises RegistryError."""

    uri: str
    patience_seconds: float
    """How long another process may take between setting two aliases; 0 under a lock."""

    def lock(self, name: str) -> AbstractContextManager[object]:
        """Exclude other writers of aliases if the registry supports it."""

    def entries(self, name: str) -> list[HistoryEntry]:
        """Return all entries, also invalid ones, in the order of their numbers."""

    def append(self, name: str, entry: HistoryEntry) -> None:
        """Add an entry under the next free number, atomically."""

    def read_applied(self, name: str) -> int:
        """Return the number of the last applied entry; 0 for none."""

    def mark_applied(self, name: str, number: int) -> None:
        """Remember that number."""

    def aliases(self, name: str) -> dict[str, str]:
        """Return versions by alias; {} if there is no such model."""

    def set_alias(self, name: str, alias: str, version: str | None) -> None:
        """Point the alias to the version; None removes it, if it exists."""

    def has_version(self, name: str, version: str) -> bool: ...

    def put_back(self, name: str) -> None:
        """Create aliases again that a killed two-step move removed."""


class Journal:
    """The history and the aliases of one registered model."""

    def __init__(self, storage: JournalStorage, name: str) -> None:
        self._storage = storage
        self._name = name

    def move(self, move: AliasChange) -> HistoryEntry | None:
        """Move the alias, or return None if it already points there.

        Raises:
            RegistryError: it does not point to what the move replaces, there is no such version, or
                the alias is not allowed.
        """
        # Before the entry: one that is written must be carried out.
        for alias in (move.alias, move.previous_alias):
            if alias is not None and not can_be_alias(alias):
                raise RegistryError(
                    f"'{alias}' cannot be an alias", where=self._storage.uri, hint=f"give {RULE}"
                )

        def entry_of(state: AliasState) -> HistoryEntry | None:
            current = state.aliases.get(move.alias)
            if current == move.version:
                return None
            self._check_replaces(state, move.alias, move.replaces)
            changes: dict[str, str | None] = {}
            if move.previous_alias is not None and current is not None:
                changes[move.previous_alias] = current
            changes[move.alias] = move.version
            if move.alias != CANDIDATE and state.aliases.get(CANDIDATE) == move.version:
                changes[CANDIDATE] = None
            return _entry(state, move.alias, move.previous_alias, changes, move.cause)

        with self._storage.lock(self._name):
            self._settle(move.alias, move.previous_alias)
            return self._append(entry_of, move.alias, move.previous_alias)

    def roll_back(
        self, alias: str, cause: ChangeReason, *, to: str | None, replaces: str | None
    ) -> HistoryEntry:
        """Move the alias back, or complete its unfinished rollback.

        Raises:
            RegistryError: there is no earlier version, or it does not point to `replaces`.
        """

        def entry_of(state: AliasState) -> HistoryEntry:
            current = state.aliases.get(alias)
            if replaces is not None:
                self._check_replaces(state, alias, replaces)
            way = state.before(alias)
            if to is not None:
                way = way_to(to, way) or (*state.ways.get(alias, ()), to)
            if not way or way[-1] == current:
                raise RegistryError(
                    f"'{alias}' of '{self._name}' has no version to go back to"
                    if not way
                    else f"'{alias}' of '{self._name}' is at version {current} already",
                    where=self._storage.uri,
                    hint=f"`prepare registry history {self._name}` shows the moves so far",
                )
            changes: dict[str, str | None] = {}
            before = self._previous_alias_of(state, alias)
            if before is not None:
                changes[before] = way[-2] if len(way) > 1 else None
            changes[alias] = way[-1]
            return _entry(state, alias, before, changes, cause)

        with self._storage.lock(self._name):
            for finished in self._settle(alias, None):
                if finished.action == "rollback" and finished.alias == alias:
                    return finished
            appended = self._append(entry_of, alias, None)
        if appended is None:
            raise AssertionError("rolling back always moves")
        return appended

    def settle(self) -> list[HistoryEntry]:
        """Set the aliases by the history; return the entries that were pending."""
        with self._storage.lock(self._name):
            return self._settle(CHAMPION, PREVIOUS)

    def _append(
        self,
        entry_of: Callable[[AliasState], HistoryEntry | None],
        alias: str,
        previous_alias: str | None,
    ) -> HistoryEntry | None:
        for _ in range(ATTEMPTS):
            entry = entry_of(replay(self._storage.entries(self._name)))
            if entry is None:
                return None
            self._check_versions(entry)
            with self._report_if_recorded(entry):
                self._storage.append(self._name, entry)
                won = self._find_held(entry)
                self._settle(alias, previous_alias)
            if won is not None:
                return won
        raise RegistryError(
            f"others moved aliases of '{self._name}' {ATTEMPTS} times in a row while we tried",
            where=self._storage.uri,
            hint="run the command again",
        )

    @contextmanager
    def _report_if_recorded(self, entry: HistoryEntry) -> Iterator[None]:
        try:
            yield
        except RegistryError as error:
            try:
                held = self._find_held(entry)
            except RegistryError:
                what = "whether the move is recorded is not known"
            else:
                if held is None:
                    raise
                what = f"entry {held.number} of the history is recorded, and was not completed"
            raise RecordedMoveError(
                f"'{entry.alias}' of '{self._name}': {what}: {error.message}",
                where=error.where or self._storage.uri,
                hint=f"`prepare registry history {self._name}` shows the entry once the registry "
                "works. The next promote, rollback, pull, push, serve, recheck or verify of "
                f"{self._name} completes it; `prepare rollback {self._name} --alias {entry.alias}` "
                "undoes it",
            ) from error

    def _find_held(self, entry: HistoryEntry) -> HistoryEntry | None:
        held = replay(self._storage.entries(self._name)).held
        return next((each for each in held if each.id == entry.id), None)

    def _settle(self, alias: str, previous_alias: str | None) -> list[HistoryEntry]:
        """Apply and return pending entries; record outside moves."""
        finished: dict[int, HistoryEntry] = {}
        for _ in range(ATTEMPTS):
            state = replay(self._storage.entries(self._name))
            applied = self._storage.read_applied(self._name)
            if applied < state.last:
                finished |= {e.number: e for e in state.held if e.number > applied}
                self._carry_out(state, applied)
                continue  # another one may have come meanwhile, and have set them before us
            if not self._note_outside(state, alias, previous_alias):
                break
        self._storage.put_back(self._name)
        return list(finished.values())

    def _carry_out(self, state: AliasState, applied: int) -> None:
        actual = self._storage.aliases(self._name)
        # In the order of the entries: `previous` is set before what it keeps is left.
        touched = dict.fromkeys(a for e in state.held if e.number > applied for a in e.changes)
        for alias in touched:
            wanted = state.aliases.get(alias)
            if wanted is not None and not self._storage.has_version(self._name, wanted):
                wanted = None  # deleted meanwhile; the alias is then seen to be gone, and noted
            if actual.get(alias) != wanted:
                self._storage.set_alias(self._name, alias, wanted)
        self._storage.mark_applied(self._name, state.last)

    def _note_outside(self, state: AliasState, alias: str, previous_alias: str | None) -> bool:
        """Add an entry for aliases that another program moved; return whether there were any."""
        watched = {*state.aliases, alias, CANDIDATE, CHAMPION, PREVIOUS, previous_alias or PREVIOUS}

        def find_differing() -> dict[str, str | None]:
            actual = self._storage.aliases(self._name)
            return {a: actual.get(a) for a in watched if actual.get(a) != state.aliases.get(a)}

        moved = find_differing()
        if moved and self._storage.patience_seconds > 0:
            # Another process may be about to set it.
            time.sleep(self._storage.patience_seconds)
            moved = find_differing()
        if not moved:
            return False
        mains = {e.alias: e.previous_alias for e in state.held} | {CHAMPION: PREVIOUS}
        mains[alias] = previous_alias or mains.get(alias)
        # One entry an alias, with the one of the version before it.
        for main, before in mains.items():
            own = {a: moved.pop(a) for a in (before, main) if a is not None and a in moved}
            if own:
                self._append_outside(state, main, before, own)
                return True
        for main, version in moved.items():
            self._append_outside(state, main, None, {main: version})
        return True

    def _append_outside(
        self, state: AliasState, alias: str, before: str | None, changes: dict[str, str | None]
    ) -> None:
        cause = ChangeReason(
            "outside", who="", reason="found so; not moved by prepare, or before it kept"
        )
        entry = _entry(state, alias, before, changes, cause)
        self._storage.append(self._name, entry)
        held = replay(self._storage.entries(self._name)).held
        if held and held[-1].id == entry.id:
            self._storage.mark_applied(self._name, held[-1].number)

    def _previous_alias_of(self, state: AliasState, alias: str) -> str | None:
        last = state.last_move(alias)
        if last is not None and last.alias == alias and last.previous_alias is not None:
            return last.previous_alias
        return PREVIOUS if alias == CHAMPION else None

    def _check_replaces(self, state: AliasState, alias: str, replaces: str | None) -> None:
        current = state.aliases.get(alias)
        if current == replaces:
            return
        last = state.last_move(alias)
        raise RegistryError(
            f"'{alias}' of '{self._name}' moved meanwhile: it is {_words(current)}, "
            f"not {_words(replaces)}, which this was to replace; {_describe(last)}",
            where=self._storage.uri,
            hint=f"look at `prepare registry history {self._name}`; the same command again "
            "replaces the one that is there now",
        )

    def _check_versions(self, entry: HistoryEntry) -> None:
        for version in entry.changes.values():
            if version is not None and not self._storage.has_version(self._name, version):
                raise no_version(self._storage.uri, self._name, version)


def no_version(uri: str, name: str, version: str) -> RegistryError:
    """Return the error for a missing version."""
    return RegistryError(
        f"version {version} of '{name}' was not found in the registry",
        where=uri,
        hint=f"`prepare registry show {name}` lists its versions",
    )


def _entry(
    state: AliasState,
    alias: str,
    previous_alias: str | None,
    changes: dict[str, str | None],
    cause: ChangeReason,
) -> HistoryEntry:
    return HistoryEntry(
        id=uuid.uuid4().hex,
        after=state.last,
        **vars(cause),
        alias=alias,
        previous_alias=previous_alias,
        version=changes.get(alias, state.aliases.get(alias)),
        replaced=state.aliases.get(alias),
        changes=changes,
        when=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def _words(version: str | None) -> str:
    return "at no version" if version is None else f"version {version}"


def _describe(entry: HistoryEntry | None) -> str:
    if entry is None:
        return "nobody has moved it yet"
    if entry.action == "outside":
        return f"moved by something other than prepare, seen {entry.when}"
    run = f" for run {entry.run}" if entry.run else ""
    return f"moved by {entry.who} at {entry.when} ({entry.action}{run})"
