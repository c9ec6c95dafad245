"""`--on-fail rollback` while others move the alias: together, between, or killed before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from registry_contract import client, killed_at, promote, register, roll_back, weights

from artifacts.deploy.on_fail import FailedCheck, Rollback
from artifacts.registry import Move, Registry

NAME = "model"
CHAMPION = f"{NAME}@champion"
FAILED = FailedCheck("a-run", "f" * 64, "failed on code")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Four versions; the champion was 1, 2 and 3 after one another."""
    uri = f"sqlite:///{tmp_path}/registry.db"
    registry = Registry(uri)
    register(registry, NAME, weights(tmp_path / "weights"), "abcd")
    for version, replaces in (("1", None), ("2", "1"), ("3", "2")):
        promote(registry, NAME, version, replaces)
    return uri


class Overtaken(Registry):
    """Another process acts between what a check reads and its move."""

    def __init__(self, uri: str, act: Callable[[Registry], Any]) -> None:
        super().__init__(uri)
        self.act = act

    def roll_back(self, *arguments: Any, **options: Any) -> Move:
        self.act(Registry(self.uri))
        return super().roll_back(*arguments, **options)


def champion(uri: str) -> str:
    return Registry(uri).aliases(NAME)["champion"]


def check(registry: Registry, version: str) -> Move | None:
    """A failed check of that version."""
    return Rollback(registry, NAME, "champion", version).move_back(FAILED, Listener().note)


def test_two_failed_checks_at_once_go_one_version_back(uri: str) -> None:
    check(Overtaken(uri, lambda other: check(other, "3")), "3")
    assert champion(uri) == "2"


def test_a_promotion_between_is_kept(uri: str) -> None:
    check(Overtaken(uri, lambda other: promote(other, NAME, "4", "3")), "3")
    assert champion(uri) == "4"


def test_a_begun_move_from_another_version_is_not_completed(uri: str) -> None:
    """It was killed before it moved the alias, which then was moved by MLflow's own client."""
    assert killed_at(uri, 2, lambda registry: check(registry, "3"), after=False)
    assert champion(uri) == "3"
    client(uri).set_registered_model_alias(NAME, "champion", "4")
    check(Registry(uri), "3")
    assert champion(uri) == "4"


def test_a_rollback_by_hand_is_no_promotion(uri: str) -> None:
    check(Registry(uri), "3")
    register(Registry(uri), NAME, Path(Registry(uri).versions(NAME)[0].source), "e")
    roll_back(Registry(uri), NAME, to="4")
    check(Registry(uri), "4")
    assert champion(uri) == "4"


def test_a_promotion_that_was_killed_before_it_moved_is_none(uri: str) -> None:
    check(Registry(uri), "3")
    assert killed_at(uri, 2, lambda registry: promote(registry, NAME, "4", "2"), after=False)
    assert champion(uri) == "2"
    check(Registry(uri), "2")
    assert champion(uri) == "2"
