"""Versions and aliases in MLflow's model registry: the only authority on aliases.

A move compares, writes a note, moves the previous alias and the alias, and marks the note as done.
Notes are tags of the model, since a version's tags are deleted with it. On a server, the later of
two moves within one second wins.
"""

from __future__ import annotations

import getpass
import math
import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pydantic import Field

from artifacts.mlflow_store import MlflowStore, StoredModel
from prepare.errors import RegistryError, UsageError, did_you_mean
from prepare.escape import clip
from prepare.own_command import own_command
from prepare.record import Record
from prepare.untrusted import parse_record
from recipes.policy import find_alias_fault

TUPLE_TAG = "prepare.tuple"
WEIGHTS_TAG = "prepare.weights"
MANIFEST_TAG = "prepare.manifest"
EVIDENCE_TAG = "prepare.evidence"
POLICY_TAG = "prepare.policy.digest"
JUDGE_TAG = "prepare.judge"
WEIGHTS_STAGE_TAG = "prepare.weights_stage"
RUN_TAG = "prepare.run"
MOVE_TAG = "prepare.move."
_NUMBER = re.compile(r"[0-9]{1,18}")
REASON_CHARACTERS = 2000  # MLflow's limit is 5,000


class Move(Record):
    """One change of an alias."""

    number: int = Field(description="place in the history")
    alias: str
    version: str = Field(description="it points to since")
    replaced: str | None = Field(description="version that it pointed to before")
    previous_alias: str | None = Field(description="alias of the version before it")
    action: Literal["promote", "override", "rollback"]
    who: str
    run: str = Field("", description="id of the run that the evidence is of")
    verdict: str = Field("", description="of the gates")
    reason: str = ""
    when: str = Field(description="UTC, ISO 8601")
    done: bool = Field(False, description="false: begun, and killed before the alias was set")


@dataclass(frozen=True)
class Version:
    """One registered version."""

    name: str
    version: str
    aliases: tuple[str, ...]
    source: str
    tags: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "aliases": list(self.aliases), "tags": dict(self.tags)}


@dataclass(frozen=True)
class Registered:
    """One registered model at one time."""

    aliases: Mapping[str, str]  # version by alias
    versions: tuple[Version, ...]  # newest first
    notes: tuple[tuple[str, Move], ...]  # tag and move, oldest first

    @property
    def history(self) -> list[Move]:
        """Moves that happened, the oldest first."""
        return [
            move
            for _, move in self.notes
            if move.done or (move.version == self.aliases.get(move.alias) and self._is_last(move))
        ]

    def _is_last(self, move: Move) -> bool:
        """Return whether no move of the alias came after; an earlier one never happened."""
        last = self.last_note(move.alias)
        return last is not None and last[1] == move

    @property
    def last_move(self) -> int:
        """Return the number of the last move that happened; 0 before the first."""
        return max((move.number for move in self.history), default=0)

    def last_note(self, alias: str) -> tuple[str, Move] | None:
        """Return the tag and the alias' last move, which may be incomplete."""
        return next((note for note in reversed(self.notes) if note[1].alias == alias), None)

    def find(self, number: str) -> Version | None:
        return next((version for version in self.versions if version.version == number), None)

    def way(self, alias: str) -> list[str]:
        """Return the alias' versions; a rollback removes those after its target."""
        way: list[str] = []
        current = self.aliases.get(alias)
        for move in self.history:
            if move.alias != alias:
                continue
            if move.replaced is not None and way[-1:] != [move.replaced]:
                way.append(move.replaced)  # another program moved it
            if move.action == "rollback" and move.version in way:
                way = way[: len(way) - way[::-1].index(move.version)]
            elif way[-1:] != [move.version]:
                way.append(move.version)
        return way if current is None or way[-1:] == [current] else [*way, current]

    def way_there(self, alias: str) -> list[str]:
        """Return the versions of the alias' way that still exist."""
        return [number for number in self.way(alias) if self.find(number) is not None]


@dataclass(frozen=True)
class Cause:
    """Why an alias moves."""

    action: Literal["promote", "override", "rollback"]
    who: str
    run: str = ""
    verdict: str = ""
    reason: str = ""


class Registry:
    """A model registry; methods raise RegistryError, or UsageError for what it lacks."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._store = MlflowStore(uri)

    def lock(self) -> AbstractContextManager[object]:
        """Return the reentrant lock of a registry that is a file; a server has none."""
        return self._store.lock()

    def names(self) -> list[str]:
        return self._store.names()

    def model(self, name: str) -> Registered | None:
        """Return a model, or None."""
        stored = self._store.read(name)
        return self._parse(name, stored) if stored is not None else None

    def existing(self, name: str) -> Registered:
        """Return a model, or raise UsageError."""
        model = self.model(name)
        if model is None:
            raise UsageError(
                f"nothing is registered as '{name}'",
                where=self.uri,
                hint=f"{did_you_mean(name, self.names())}known: "
                f"{', '.join(self.names()) or 'nothing yet'}; `prepare model` registers a variant "
                "that passes, and --registry names another registry",
            )
        return model

    def versions(self, name: str) -> list[Version]:
        """Return all versions, newest first."""
        model = self.model(name)
        return list(model.versions) if model else []

    def aliases(self, name: str) -> dict[str, str]:
        model = self.model(name)
        return dict(model.aliases) if model else {}

    def history(self, name: str) -> list[Move]:
        """Return all moves, the oldest first."""
        model = self.model(name)
        return model.history if model else []

    def check(self, name: str) -> None:
        """Raise RegistryError if registration must fail."""
        self._store.check_writable()
        model = self.model(name)
        self._store.check_permission(name, is_there=model is not None)

    def register(
        self,
        name: str,
        folder: Path,
        tags: Mapping[str, str],
        has_files: Callable[[Version], bool] = lambda version: True,
    ) -> str:
        """Register the folder, or return a version with the same files or evidence.

        An identical run may register it at the same time. A server has no lock, so the later of two
        equal versions is deleted by the process that made it.
        """

        def find_equal(before: float) -> str | None:
            evidence = tags.get(EVIDENCE_TAG)
            for version in reversed(self.versions(name)):  # the earliest is never deleted
                if int(version.version) >= before:
                    return None
                if version.tags.get(MANIFEST_TAG) == tags[MANIFEST_TAG]:
                    return version.version
                has_evidence = evidence is not None and version.tags.get(EVIDENCE_TAG) == evidence
                if has_evidence and has_files(version):
                    return version.version
            return None

        with self._store.lock():
            known = find_equal(math.inf)
            if known is not None:
                return known
            made = self._store.create_version(name, folder, tags)
            earlier = find_equal(int(made))
            if earlier is None:
                return made
            self._store.delete_version(name, made)
            return earlier

    def set_tags(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        """Add or change tags; others stay."""
        with self._store.lock():
            for key, value in tags.items():
                self._store.set_version_tag(name, version, key, value)

    def fetch(self, version: Version, folder: Path) -> None:
        """Copy into an empty folder."""
        self._store.fetch(version.name, version.version, Path(version.source), folder)

    def move(
        self,
        name: str,
        alias: str,
        version: str,
        cause: Cause,
        *,
        replaces: str | None,
        previous_alias: str | None = None,
    ) -> Move | None:
        """Point the alias to the version; None if it points there already.

        It completes a killed move. The alias must point to `replaces` (None: nowhere), which
        `previous_alias` gets.
        """
        with self._store.lock():
            model = self.existing(name)
            current = model.aliases.get(alias)
            last = model.last_note(alias)
            if current == version:
                if last is None or last[1].done or last[1].version != version:
                    return None
                return self._finish(name, last)
            self._check_points_to(replaces, name, model, alias)
            return self._move(name, model, alias, version, cause, previous_alias, current)

    def roll_back(
        self,
        name: str,
        alias: str,
        cause: Cause,
        *,
        to: str | None = None,
        replaces: str | None = None,
        check: Callable[[Registered], None] = lambda model: None,
    ) -> Move:
        """Point the alias to `to`, or to the previous version that still exists.

        It completes a killed rollback. The alias must point to `replaces`, if given. `check` sees
        the model that is about to change, and raises what leaves it as it is.
        """
        with self._store.lock():
            model = self.existing(name)
            current = model.aliases.get(alias)
            last = model.last_note(alias)
            check(model)
            if last is not None and last[1].action == "rollback" and not last[1].done:
                begun = last[1]
                if to in (None, begun.version) and current == begun.version:
                    return self._finish(name, last)
                if current == begun.replaced:
                    to = to or begun.version
            if replaces is not None:
                self._check_points_to(replaces, name, model, alias)
            target = self._find_target(name, model, alias, to)
            self._check_files(model, target)
            there = model.way_there(alias)
            names = [m.previous_alias for m in model.history if m.alias == alias]
            kept = there[: len(there) - there[::-1].index(target)] if target in there else there
            before = next(
                (number for number in reversed(kept) if number not in (target, current)), None
            )
            previous = next((number for number in reversed(names) if number), None)
            return self._move(name, model, alias, target, cause, previous, before)

    def check_roll_back(self, name: str, alias: str) -> None:
        """Raise UsageError if the alias has no version to go back to."""
        self._find_target(name, self.existing(name), alias, None)

    def _find_target(self, name: str, model: Registered, alias: str, to: str | None) -> str:
        """Return the version that a rollback goes to; UsageError if there is none."""
        current = model.aliases.get(alias)
        there = model.way_there(alias)
        target = to or next((number for number in reversed(there) if number != current), None)
        if target is None or target == current or model.find(target) is None:
            gone = [f"version {number}" for number in model.way(alias) if number not in there]
            others = [one.version for one in model.versions if one.version != current]
            rollback = own_command("rollback", name, "--alias", alias, "--to", "VERSION")
            cure = f"`{rollback}` moves it to one of {', '.join(others)}"
            if current is None:
                cure = f"its aliases: {', '.join(sorted(model.aliases)) or 'none'}"
            elif not others:
                cure = f"version {current} is the only one: promote another first"
            raise UsageError(
                f"'{alias}' of '{name}' has no version to go back to"
                if target is None
                else f"'{alias}' of '{name}' points to version {target} already"
                if target == current
                else f"'{name}' has no version {target}",
                where=self.uri,
                hint=(f"{', '.join(gone)} was deleted in MLflow; " if gone else "") + cure,
            )
        return target

    def _check_files(self, model: Registered, number: str) -> None:
        """Raise RegistryError for a version whose folder was removed from the store next to it.

        One of another machine or user, whose parent cannot be looked at, is believed.
        """
        version = model.find(number)
        folder = Path(version.source) if version is not None else Path()
        try:
            is_gone = folder.is_absolute() and folder.parent.is_dir() and not folder.is_dir()
        except OSError:
            is_gone = False
        if version is None or not is_gone:
            return
        run = version.tags.get(RUN_TAG, "")
        raise RegistryError(
            f"the files of version {number} of '{version.name}' are gone, such as by `prepare gc`",
            where=str(folder),
            hint=f"`{own_command('promote', run or 'RUN')}` makes them again from that run; or go "
            "--to another version",
        )

    def _check_points_to(
        self, version: str | None, name: str, model: Registered, alias: str
    ) -> None:
        current = model.aliases.get(alias)
        if current != version:
            points, wanted = (
                f"version {number}" if number else "no version" for number in (current, version)
            )
            moves = [move for move in model.history if move.alias == alias]
            who = f"; {moves[-1].who} moved it at {moves[-1].when}" if moves else ""
            raise RegistryError(
                f"'{alias}' of '{name}' points to {points}, not to {wanted}{who}",
                where=self.uri,
                hint=f"`{own_command('registry', name, '--history')}` shows what happened; "
                "promote again to replace that version",
            )

    def _move(
        self,
        name: str,
        model: Registered,
        alias: str,
        version: str,
        cause: Cause,
        previous_alias: str | None,
        previous: str | None,
    ) -> Move:
        """Note the move, set the aliases, and mark the note as done.

        A killed move's note is completed if its alias is set, and taken over if it is this one.
        """
        move = Move(
            number=model.notes[-1][1].number + 1 if model.notes else 1,
            alias=alias,
            version=version,
            replaced=model.aliases.get(alias),
            previous_alias=previous_alias,
            when=datetime.now(UTC).isoformat(timespec="milliseconds"),
            **{**vars(cause), "reason": clip(cause.reason, REASON_CHARACTERS)},
        )
        tag = f"{MOVE_TAG}{move.number:06d}.{uuid4().hex[:8]}"
        last = model.last_note(alias)
        if last is not None and not last[1].done:
            begun = last[1]
            if begun.version == move.replaced:  # it was killed after it had moved the alias
                self._finish(name, last)
            elif (begun.version, begun.replaced) == (version, move.replaced):
                tag = last[0]
                move = move.model_copy(update={"number": begun.number})
        self._note(name, tag, move)
        if previous_alias is not None and (previous is not None or previous_alias in model.aliases):
            self._store.set_alias(name, previous_alias, previous)
        self._store.set_alias(name, alias, version)
        return self._finish(name, (tag, move))

    def _finish(self, name: str, note: tuple[str, Move]) -> Move:
        """Mark the move's note as done."""
        return self._note(name, note[0], note[1].model_copy(update={"done": True}))

    def _note(self, name: str, tag: str, move: Move) -> Move:
        self._store.set_model_tag(name, tag, move.model_dump_json())
        return move

    def _parse(self, name: str, stored: StoredModel) -> Registered:
        notes = []
        for tag, text in stored.tags.items():
            if not tag.startswith(MOVE_TAG):
                continue
            try:
                notes.append((tag, parse_record(text.encode(), Move)))
            except ValueError as error:
                raise RegistryError(
                    f"an entry of the history of '{name}' is damaged: {error}",
                    where=f"{self.uri}, model {name}, tag {tag}",
                    hint="a user changed it; delete that tag to leave the entry out",
                ) from error
        for number, _, _ in stored.versions:
            if not _NUMBER.fullmatch(number):
                raise RegistryError(
                    f"a version of '{name}' has no number: {number[:40]!r}",
                    where=f"{self.uri}, model {name}",
                    hint="it is not from MLflow: delete that version",
                )
        versions = [
            Version(
                name=name,
                version=number,
                aliases=tuple(sorted(a for a, v in stored.aliases.items() if v == number)),
                source=source,
                tags=tags,
            )
            for number, source, tags in sorted(
                stored.versions, key=lambda version: -int(version[0])
            )
        ]
        notes.sort(key=lambda note: (note[1].number, note[1].when))
        return Registered(stored.aliases, tuple(versions), tuple(notes))


def check_name(name: str) -> None:
    """Raise UsageError for a name that no registry takes."""
    if not name.strip() or any(letter in name for letter in "/:@"):
        raise UsageError(
            f"'{name}' cannot be a name in the registry",
            where="--name",
            hint="give a name without '/', ':' and '@'",
        )


def check_alias(alias: str) -> None:
    """Raise UsageError for an alias that no registry takes."""
    if fault := find_alias_fault(alias):
        raise UsageError(fault, where="--alias", hint="give another alias, such as 'candidate'")


def who_am_i() -> str:
    """Return a CI system's user, else user and machine."""
    for variable in ("GITHUB_ACTOR", "GITLAB_USER_LOGIN"):
        if os.environ.get(variable):
            return os.environ[variable]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
