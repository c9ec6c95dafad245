"""What a model registry can do, whatever holds it: versions, aliases that move once, a history.

A version points to a checkpoint and never changes. An alias is a name for a version. Every move of
an alias is a row of the history, which is only ever added to (see `journal.py`).
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field, model_validator

from pipeline.core.record import Record

CANDIDATE = "candidate"
CHAMPION = "champion"
PREVIOUS = "previous"

TUPLE_TAG = "prepare.tuple"
WEIGHTS_TAG = "prepare.weights"
FILES_TAG = "prepare.files"
EVIDENCE_TAG = "prepare.evidence"
POLICY_TAG = "prepare.policy.digest"

Action = Literal["promote", "override", "rollback", "outside"]


def is_same(some: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether tags are of one version: the same deployable tuple, judged by the same evidence."""
    return all(some.get(tag) == others.get(tag) for tag in (TUPLE_TAG, EVIDENCE_TAG))


@dataclass(frozen=True)
class Version:
    """One registered version, as reports show it."""

    name: str
    version: str
    aliases: tuple[str, ...]
    source: str
    tags: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "name": self.name,
            "version": self.version,
            "aliases": list(self.aliases),
            "source": self.source,
            "tags": dict(self.tags),
        }


@dataclass(frozen=True)
class Cause:
    """Why an alias moves, as the history keeps it."""

    action: Action
    who: str
    run: str = ""
    verdict: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Move:
    """An alias that is to point to another version."""

    alias: str  # that moves
    version: str  # it will point to
    # version that it points to now, as far as the mover knows; None for 'to none'. When that is not
    # so any more, nothing moves.
    replaces: str | None
    cause: Cause
    # gets the version that `alias` leaves; None leaves no trace but the history
    previous_alias: str | None = None


class HistoryEntry(Record):
    """One move of an alias; what the entries say together is what the aliases must be."""

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


class Registry(Protocol):
    """A model registry. Every method raises RegistryError when it refuses or does not answer."""

    uri: str

    def names(self) -> list[str]:
        """Names of all registered models."""

    def versions(self, name: str) -> list[Version]:
        """All versions of a model, newest first; none when there is no such model."""

    def aliases(self, name: str) -> dict[str, str]:
        """Version by alias, as they stand; none when there is no such model."""

    def check_writable(self, name: str) -> None:
        """Write nothing; raise RegistryError where it is plain that nothing can be registered."""

    def register(self, name: str, folder: Path, tags: Mapping[str, str]) -> str:
        """Make a version of the folder, or find the one of the same tuple and evidence."""

    def set_tags(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        """Add tags to a version, or change them; its other tags stay."""

    def settle(self, name: str) -> list[HistoryEntry]:
        """Finish moves that were begun and not carried out; returns those that it finished."""

    def move_alias(self, name: str, move: Move) -> HistoryEntry | None:
        """Move an alias if it still points to what the move replaces; None: it was there.

        Raises:
            RegistryError: it points elsewhere by now; says who moved it.
        """

    def roll_back(
        self, name: str, alias: str, cause: Cause, *, to: str | None, replaces: str | None
    ) -> HistoryEntry:
        """Move an alias back to the version before (or to `to`).

        When another one left a rollback of this alias unfinished, finishing it is all that is done.
        """

    def history(self, name: str) -> list[HistoryEntry]:
        """The moves that held, oldest first."""

    def fetch(self, version: Version, folder: Path) -> None:
        """Copy the version's files into that folder, which exists and is empty."""


def open_registry(uri: str) -> Registry:
    """The registry at that address; raises RegistryError when it cannot be opened."""
    from artifacts.registry import hub_registry, mlflow_registry, oci_registry

    if uri.startswith(hub_registry.SCHEME):
        return hub_registry.HubRegistry(uri)
    if uri.startswith(oci_registry.SCHEME):
        return oci_registry.OciRegistry(uri)
    return mlflow_registry.MlflowRegistry(uri)


def check_registry(uri: str, name: str) -> None:
    """Look before hours of work whether their outcome can be registered; nothing is written.

    MLflow makes tables in a database, and folders for a path, as soon as it opens them, so those
    are not looked at.

    Raises:
        RegistryError: it is plain that it cannot; other causes show only when it is written.
    """
    from artifacts.registry.hub_registry import SCHEME as HUB
    from artifacts.registry.mlflow_registry import EMBEDDED, check_embedded, is_server
    from artifacts.registry.oci_registry import SCHEME as OCI

    if uri.startswith(EMBEDDED):
        check_embedded(uri)
    elif uri.startswith((HUB, OCI)) or is_server(uri):
        open_registry(uri).check_writable(name)


def still_has(uri: str, name: str, versions: Collection[str], aliases: Mapping[str, str]) -> bool:
    """Whether the registry still has these versions of a model, and its aliases point so.

    Raises:
        RegistryError: it does not answer.
    """
    from artifacts.registry.mlflow_registry import EMBEDDED, embedded_has

    if uri.startswith(EMBEDDED):
        answer = embedded_has(uri, name, versions, aliases)
        if answer is not None:
            return answer
    registry = open_registry(uri)
    known = {version.version for version in registry.versions(name)}
    pointers = registry.aliases(name)
    return known >= set(versions) and pointers.items() >= aliases.items()


def who_am_i() -> str:
    """Who moves an alias: whom a CI system says it acts for, else user and machine."""
    for variable in ("GITHUB_ACTOR", "GITLAB_USER_LOGIN"):
        if os.environ.get(variable):
            return os.environ[variable]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
