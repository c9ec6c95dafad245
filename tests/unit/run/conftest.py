"""A promoted version, and a machine that rechecks it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_run import FakeRun
from pretend_recheck import QUESTIONS, RECIPE, Machine, as_before, policy_of
from pretend_stages import PretendModels
from some_node import NODE

from artifacts.registry import Registry
from prepare.store import Store


@pytest.fixture(scope="session")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> FakeRun:
    root = tmp_path_factory.mktemp("judged") / "store"
    models = PretendModels(as_before, questions=QUESTIONS)
    hardware = NODE.hardware("cpu").model_dump()
    made = FakeRun(root, models, recipes=(RECIPE, "awq-w4a16"), hardware=hardware)
    made.policy = policy_of()
    made.run()
    made.promote(variant=RECIPE)
    return made


@pytest.fixture
def site(promoted: FakeRun, tmp_path: Path) -> Machine:
    """A machine with a copy of the registry, and an empty store."""
    file = tmp_path / "registry.db"
    shutil.copyfile(promoted.root / "registry.db", file)
    models = PretendModels(as_before, questions=QUESTIONS)
    return Machine(Store(tmp_path / "here"), Registry(f"sqlite:///{file}"), models)
