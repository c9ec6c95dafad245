"""The journal's rules on any order of moves, losers, kills and hands from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.registry.history import replay
from artifacts.registry.journal import Journal
from artifacts.registry.registry import Cause, HistoryEntry, Move
from pipeline.core.errors import RegistryError

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

    def write(self) -> None:
        if self.writes_left == 0:
            raise KilledError
        if self.writes_left is not None:
            self.writes_left -= 1


def promote(memory: Memory, version: str, replaces: str | None) -> HistoryEntry | None:
    move = Move("champion", version, replaces, Cause("promote", "ann"), "previous")
    return Journal(memory, "m").move(move)


def roll_back(memory: Memory) -> HistoryEntry:
    return Journal(memory, "m").roll_back(
        "champion", Cause("rollback", "ann"), to=None, replaces=None
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
    """Whatever is killed wherever: settled, the aliases are what the entries say."""
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
                move = Move("candidate", "4", None, Cause("promote", "bob"))
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
                Journal(self, "m").move(Move("candidate", version, there, Cause("promote", "bob")))
                self.busy = False
            super().append(name, entry)

    with pytest.raises(RegistryError, match="'m' 20 "):
        promote(Restless(), "4", None)


@pytest.mark.parametrize("alias", ["v3", "3", "latest", "main", "a b", "a.b", "../x", "-a", ""])
@pytest.mark.parametrize("of", ["alias", "previous_alias"])
def test_names_that_some_registry_cannot_have(alias: str, of: str) -> None:
    """Refused before the entry: one that is written must be carried out."""
    memory = Memory()
    names = {"alias": "champion", "previous_alias": "previous", of: alias}
    move = Move(names["alias"], "1", None, Cause("promote", "ann"), names["previous_alias"])
    with pytest.raises(RegistryError, match=f"'{alias}'"):
        Journal(memory, "m").move(move)
    assert memory.kept == []
