"""Interface of model registries: versions, aliases with atomic moves, a history.

A version points to a checkpoint and never changes; an alias is a name for a version. The history is
append-only (see `journal.py`).
"""

from __future__ import annotations

import getpass
import os
import socket
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.registry.history import AliasChange, ChangeReason, HistoryEntry, replay
from artifacts.registry.journal import Journal, JournalStorage

TUPLE_TAG = "prepare.tuple"
WEIGHTS_TAG = "prepare.weights"
FILES_TAG = "prepare.files"
EVIDENCE_TAG = "prepare.evidence"
POLICY_TAG = "prepare.policy.digest"


def is_same(some: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Return whether both tags have the same deployable tuple and evidence."""
    return all(some.get(tag) == others.get(tag) for tag in (TUPLE_TAG, EVIDENCE_TAG))


@dataclass(frozen=True)
class Version:
    """One registered version in reports."""

    name: str
    version: str
    aliases: tuple[str, ...]
    source: str
    tags: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "aliases": list(self.aliases),
            "source": self.source,
            "tags": dict(self.tags),
        }


class Registry(JournalStorage):
    """A model registry; all backends share moves and rollbacks of aliases.

    Backends implement the abstract methods here and in `JournalStorage`. Every method raises
    RegistryError if the registry refuses or does not answer.
    """

    # Each name is a repository's, so it has the characters that repositories allow.
    names_are_repositories: bool = False
    # A model that exists and one that we may not read look the same.
    hides_models: bool = False

    @abstractmethod
    def __init__(self, uri: str) -> None: ...

    @classmethod
    def check(cls, uri: str, name: str) -> None:
        """Raise RegistryError if registration is bound to fail; write nothing."""
        cls(uri).check_writable(name)

    @classmethod
    def has(
        cls, uri: str, name: str, versions: Collection[str], aliases: Mapping[str, str]
    ) -> bool:
        """Return whether it still has these versions of a model, and these aliases.

        Every run with a cached promotion calls it, so it must be fast.
        """
        registry = cls(uri)
        known = {version.version for version in registry.versions(name)}
        return known >= set(versions) and registry.aliases(name).items() >= aliases.items()

    @abstractmethod
    def names(self) -> list[str]: ...

    @abstractmethod
    def versions(self, name: str) -> list[Version]:
        """Return all versions of a model, newest first; [] if there is no such model."""

    @abstractmethod
    def check_writable(self, name: str) -> None:
        """Raise RegistryError if registration is bound to fail; write nothing."""

    @abstractmethod
    def register(self, name: str, folder: Path, tags: Mapping[str, str]) -> str:
        """Make a version of the folder, or reuse the one of the same tuple and evidence."""

    @abstractmethod
    def set_tags(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        """Add or change tags of a version; its other tags stay."""

    @abstractmethod
    def fetch(self, version: Version, folder: Path) -> None:
        """Copy the version's files into that existing, empty folder."""

    def settle(self, name: str) -> list[HistoryEntry]:
        return Journal(self, name).settle()

    def move_alias(self, name: str, move: AliasChange) -> HistoryEntry | None:
        """Move an alias from what the move replaces; None if it already points there.

        Raises:
            RegistryError: it points elsewhere; names the user who moved it.
            RecordedMoveError: the move is, or may be, recorded, and was not completed.
        """
        return Journal(self, name).move(move)

    def roll_back(
        self,
        name: str,
        alias: str,
        cause: ChangeReason,
        *,
        to: str | None = None,
        replaces: str | None = None,
    ) -> HistoryEntry:
        """Move an alias back to the previous version (or to `to`).

        If a rollback of this alias is unfinished, only that one is completed.

        Raises:
            RecordedMoveError: the move is, or may be, recorded, and was not completed.
        """
        return Journal(self, name).roll_back(alias, cause, to=to, replaces=replaces)

    def history(self, name: str) -> list[HistoryEntry]:
        return list(replay(self.entries(name)).held)

    def find_same(self, name: str, tags: Mapping[str, str]) -> Version | None:
        return next((each for each in self.versions(name) if is_same(each.tags, tags)), None)

    def put_back(self, name: str) -> None:
        """Do nothing: moving an alias is one step."""


def who_am_i() -> str:
    """Return the user of a CI system, else user and machine."""
    for variable in ("GITHUB_ACTOR", "GITLAB_USER_LOGIN"):
        if os.environ.get(variable):
            return os.environ[variable]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
