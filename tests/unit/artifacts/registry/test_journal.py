"""The journal's rules on any order of moves, losers, kills and hands from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.registry.history import replay
from artifacts.registry.journal import Journal
from artifacts.registry.registry import AliasChange, ChangeReason, HistoryEntry
from pipeline.core.errors import RecordedMoveError, RegistryError

VERSIONS = ("1", "2", "3", "4")


class KilledError(Exception):
    """Stands for SIGKILL: everything after it does not happen."""


class Memory:
    """The least that a registry can do: numbers given once, aliases set one at a time.

    Attributes:
        writes_left: until the process that writes is killed; None for never.
    """

    uri = "memory"
    patience_seconds = 0.0

    def __init__(self) -> None:
        self.kept: list[HistoryEntry] = []
        self.pointers: dict[str, str] = {}
        self.mark = 0
        self.writes_left: int | None = None

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        yield

    def entries(self, name: str) -> list[HistoryEntry]:
        return list(self.kept)

    def append(self, name: str, entry: HistoryEntry) -> None:
        self.write()
        self.kept.append(entry.model_copy(update={"number": len(self.kept) + 1}))

    def read_applied(self, name: str) -> int:
        return self.mark

    def mark_applied(self, name: str, number: int) -> None:
        self.write()
        self.mark = number

    def aliases(self, name: str) -> dict[str, str]:
        return dict(self.pointers)

    def set_alias(self, name: str, alias: str, version: str | None) -> None:
        self.write()
        self.pointers.pop(alias, None)
        if version is not None:
            self.pointers[alias] = version

    def has_version(self, name: str, version: str) -> bool:
        return version in VERSIONS

    def put_back(self, name: str) -> None:
        """Nothing: moving an alias is one step."""

    def write(self) -> None:
        if self.writes_left == 0:
            raise KilledError
        if self.writes_left is not None:
            self.writes_left -= 1


def promote(memory: Memory, version: str, replaces: str | None) -> HistoryEntry | None:
    move = AliasChange("champion", version, replaces, ChangeReason("promote", "ann"), "previous")
    return Journal(memory, "m").move(move)


def roll_back(memory: Memory) -> HistoryEntry:
    return Journal(memory, "m").roll_back(
        "champion", ChangeReason("rollback", "ann"), to=None, replaces=None
    )


STEPS = st.one_of(
    st.tuples(st.just("promote"), st.sampled_from(VERSIONS)),
    st.tuples(st.just("rollback"), st.just("")),
    st.tuples(st.just("by hand"), st.sampled_from(VERSIONS)),
)


@given(st.lists(st.tuples(STEPS, st.none() | st.integers(0, 6)), max_size=12))
def test_aliases_always_follow_from_the_history(
    steps: list[tuple[tuple[str, str], int | None]],
) -> None:
    """After any kill, once settled, the aliases are what the entries state."""
    memory = Memory()
    for (kind, version), writes_left in steps:
        if kind == "by hand":
            memory.pointers["champion"] = version
            continue
        memory.writes_left = writes_left
        try:
            if kind == "promote":
                promote(memory, version, memory.pointers.get("champion"))
            else:
                roll_back(memory)
        except (KilledError, RegistryError):
            pass
        memory.writes_left = None
    Journal(memory, "m").settle()
    assert memory.pointers == dict(replay(memory.kept).aliases)
    assert Journal(memory, "m").settle() == []


@given(st.lists(st.sampled_from(VERSIONS), min_size=1, max_size=8))
def test_rolling_back_goes_the_way_back(versions: list[str]) -> None:
    memory = Memory()
    way: list[str] = []
    for version in versions:
        if promote(memory, version, memory.pointers.get("champion")):
            way.append(version)
    while len(way) > 1:
        way.pop()
        roll_back(memory)
        assert memory.pointers["champion"] == way[-1]
        assert memory.pointers.get("previous") == (way[-2] if len(way) > 1 else None)
    with pytest.raises(RegistryError, match="'champion' of 'm'"):
        roll_back(memory)


class SlowMemory(Memory):
    """Another process moves the alias between our reading and our writing."""

    def __init__(self, meanwhile: list[str]) -> None:
        super().__init__()
        self.meanwhile = meanwhile

    def append(self, name: str, entry: HistoryEntry) -> None:
        if self.meanwhile:
            version = self.meanwhile.pop()
            promote(self, version, self.pointers.get("champion"))
        super().append(name, entry)


def test_who_comes_second_has_lost_and_is_told_who_won() -> None:
    memory = SlowMemory([])
    promote(memory, "1", None)
    memory.meanwhile = ["2"]
    with pytest.raises(RegistryError, match=r"'champion' of 'm'.* 2, .* 1,.* ann"):
        promote(memory, "3", "1")
    assert memory.pointers == {"champion": "2", "previous": "1"}
    assert [entry.version for entry in memory.kept] == ["1", "2", "3"]  # kept, but it lost
    assert [entry.version for entry in replay(memory.kept).held] == ["1", "2"]


def test_another_alias_in_between_is_no_loss() -> None:
    class OtherAlias(Memory):
        once = True

        def append(self, name: str, entry: HistoryEntry) -> None:
            if self.once and self.kept:
                self.once = False
                move = AliasChange("candidate", "4", None, ChangeReason("promote", "bob"))
                Journal(self, "m").move(move)
            super().append(name, entry)

    memory = OtherAlias()
    promote(memory, "1", None)
    promote(memory, "2", "1")
    assert memory.pointers == {"champion": "2", "previous": "1", "candidate": "4"}


def test_an_answer_that_got_lost_counts_once() -> None:
    """A client that sends an entry twice, because the first answer was lost, has won once."""

    class Twice(Memory):
        def append(self, name: str, entry: HistoryEntry) -> None:
            super().append(name, entry)
            super().append(name, entry)

    memory = Twice()
    promote(memory, "1", None)
    promote(memory, "2", "1")
    assert memory.pointers == {"champion": "2", "previous": "1"}
    assert [entry.version for entry in replay(memory.kept).held] == ["1", "2"]


def test_somebody_who_never_stops() -> None:
    class Restless(Memory):
        busy = False

        def append(self, name: str, entry: HistoryEntry) -> None:
            if not self.busy:
                self.busy = True
                there = self.pointers.get("candidate")
                version = "2" if there == "1" else "1"
                Journal(self, "m").move(
                    AliasChange("candidate", version, there, ChangeReason("promote", "bob"))
                )
                self.busy = False
            super().append(name, entry)

    with pytest.raises(RegistryError, match="'m' 20 "):
        promote(Restless(), "4", None)


class Failing(Memory):
    """A registry that works until one of its calls fails, and some that follow.

    Attributes:
        at: number of the next calls until the first that fails.
        lasts: number of calls that fail.
        done: whether a failing call does its work before.
    """

    at, lasts, done = 1_000_000, 0, False

    def call(self) -> Iterator[None]:
        self.at -= 1
        fails = -self.lasts < self.at <= 0
        if not fails or self.done:
            yield
        if fails:
            raise RegistryError("500", where="memory")

    def entries(self, name: str) -> list[HistoryEntry]:
        for _ in self.call():
            found = super().entries(name)
        return found

    def append(self, name: str, entry: HistoryEntry) -> None:
        for _ in self.call():
            super().append(name, entry)

    def set_alias(self, name: str, alias: str, version: str | None) -> None:
        for _ in self.call():
            super().set_alias(name, alias, version)

    def mark_applied(self, name: str, number: int) -> None:
        for _ in self.call():
            super().mark_applied(name, number)


def promote_told(memory: Failing) -> str:
    """Promote version 2, and return what the caller is told."""
    try:
        promote(memory, "2", "1")
    except RecordedMoveError:
        return "recorded"
    except RegistryError:
        return "failed"
    return "moved"


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("lasts", [1, 2, 50])
def test_what_a_failure_at_any_call_is_told(lasts: int, done: bool) -> None:
    """A move that is told to have failed never takes effect later."""
    told = []
    for at in range(1, 12):
        memory = Failing()
        promote(memory, "1", None)
        memory.at, memory.lasts, memory.done = at, lasts, done
        told.append(promote_told(memory))
        memory.at = 1_000_000
        Journal(memory, "m").settle()
        moved = memory.pointers == {"champion": "2", "previous": "1"}
        assert moved or memory.pointers == {"champion": "1"}
        assert moved or told[-1] != "moved"
        assert not moved or told[-1] != "failed"
    assert told[-1] == "moved"
    assert {"failed", "recorded"} <= set(told)


def test_a_recorded_move_is_undone_by_a_rollback() -> None:
    memory = Failing()
    promote(memory, "1", None)
    memory.at, memory.lasts = 5, 1
    assert promote_told(memory) == "recorded"
    roll_back(memory)
    assert memory.pointers == {"champion": "1"}


@pytest.mark.parametrize("alias", ["v3", "3", "latest", "main", "a b", "a.b", "../x", "-a", ""])
@pytest.mark.parametrize("of", ["alias", "previous_alias"])
def test_names_that_some_registry_cannot_have(alias: str, of: str) -> None:
    """Refused before the entry: one that is written must be carried out."""
    memory = Memory()
    names = {"alias": "champion", "previous_alias": "previous", of: alias}
    move = AliasChange(
        names["alias"], "1", None, ChangeReason("promote", "ann"), names["previous_alias"]
    )
    with pytest.raises(RegistryError, match=f"'{alias}'"):
        Journal(memory, "m").move(move)
    assert memory.kept == []
