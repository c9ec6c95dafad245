"""A registry whose aliases move by its journal: what all backends have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from artifacts.registry.history import replay
from artifacts.registry.journal import Journal, JournalStorage
from artifacts.registry.registry import Cause, HistoryEntry, Move, Version, is_same


class JournaledRegistry(JournalStorage):
    """Moves of aliases and their history, over what a backend can store.

    A backend implements `JournalStorage`, and what `Registry` asks for beside the moves.
    """

    @abstractmethod
    def versions(self, name: str) -> list[Version]:
        """All versions of a model, newest first; none when there is no such model."""

    def settle(self, name: str) -> list[HistoryEntry]:
        """Finish moves that were begun and not carried out; returns those that it finished."""
        return Journal(self, name).settle()

    def move_alias(self, name: str, move: Move) -> HistoryEntry | None:
        """Move an alias if it still points to what the move replaces; None: it was there."""
        return Journal(self, name).move(move)

    def roll_back(
        self,
        name: str,
        alias: str,
        cause: Cause,
        *,
        to: str | None = None,
        replaces: str | None = None,
    ) -> HistoryEntry:
        """Move an alias back, or finish a rollback of it that was left unfinished."""
        return Journal(self, name).roll_back(alias, cause, to=to, replaces=replaces)

    def history(self, name: str) -> list[HistoryEntry]:
        """The moves that held, oldest first."""
        return list(replay(self.entries(name)).held)

    def find_same(self, name: str, tags: Mapping[str, str]) -> Version | None:
        """The version of the same deployable tuple, with a verdict by the same evidence."""
        for version in self.versions(name):
            if is_same(version.tags, tags):
                return version
        return None
