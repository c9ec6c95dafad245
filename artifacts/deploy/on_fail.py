"""What a failed check does to the alias of the version that it checked.

An alias moves back by a failed verdict only, once, and only from the version that was checked. A
check does not move one again before the next promotion: an engine that harms every version would
else take it back to the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from artifacts.registry import Cause, Move, Registered, Registry, who_am_i
from prepare.errors import UsageError
from prepare.own_command import own_command


@dataclass(frozen=True)
class FailedCheck:
    """A verdict that a version failed by."""

    run: str
    judge: str  # key of the verdict; '' of a model that is broken
    reason: str

    @property
    def words(self) -> str:
        verdict = f", verdict {self.judge[:12]}" if self.judge else ""
        return f"a check failed (run {self.run}{verdict}): {self.reason}"


@dataclass(frozen=True)
class Rollback:
    """An alias that a failed check moves back from a version."""

    registry: Registry
    name: str
    alias: str
    version: str

    @classmethod
    def of(cls, registry: Registry, reference: str, version: str) -> Rollback:
        """Return the rollback of NAME@ALIAS; UsageError if there is nothing to go back to."""
        name, _, alias = reference.rpartition("@")
        model = registry.model(name) if name else None
        if model is None or alias not in model.aliases:
            raise UsageError(
                f"'{reference}' names no alias, and a rollback moves one",
                where="--on-fail rollback",
                hint="name the version by its alias, such as NAME@champion, or leave the option "
                "out",
            )
        if find_moved_back(model, alias) is None:
            registry.check_roll_back(name, alias)
        return cls(registry, name, alias, version)

    def move_back(self, failed: FailedCheck, note: Callable[[str], None]) -> Move | None:
        """Move the alias back, or complete a killed move; None if it stays, which is noted.

        RegistryError: the registry does not answer.
        """
        place = f"{self.name}@{self.alias}"
        cause = Cause("rollback", who_am_i(), run=failed.run, verdict="fail", reason=failed.words)
        try:
            move = self.registry.roll_back(self.name, self.alias, cause, check=self._check)
        except _StaysError as error:
            note(f"{place} stays {error}")
            return None
        history = own_command("registry", self.name, "--history")
        note(f"{place} is version {move.version} again, replacing {move.replaced}; {history}")
        return move

    def _check(self, model: Registered) -> None:
        """Raise _StaysError if the alias must not move: others may have moved it since the check.

        The registry calls it under its lock.
        """
        current = model.aliases.get(self.alias)
        moved = find_moved_back(model, self.alias)
        has_moved = moved is not None and (moved.done or moved.version == current)
        if moved is not None and has_moved:
            if moved.done or moved is not last_move(model, self.alias):
                raise _StaysError(
                    f"at version {current}: run {moved.run} moved it back, and nothing was "
                    "promoted since"
                )
            return  # killed before it was noted as done
        if current != self.version:
            raise _StaysError(f"at version {current}, and version {self.version} was checked")


class _StaysError(Exception):
    """Why an alias stays where it is."""


def find_moved_back(model: Registered, alias: str) -> Move | None:
    """Return the last move of the alias that a check made, or began, since the last promotion."""
    for _, move in reversed(model.notes):
        if move.alias != alias:
            continue
        if move.action == "rollback" and move.verdict == "fail":
            return move
        # One that was killed before it moved the alias promoted nothing.
        if move.action != "rollback" and move in model.history:
            return None
    return None


def last_move(model: Registered, alias: str) -> Move | None:
    """Return the alias' last move, which may only have begun."""
    return next((move for _, move in reversed(model.notes) if move.alias == alias), None)
