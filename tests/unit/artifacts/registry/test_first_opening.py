"""The embedded registry's database is whole or absent, however the process that makes it ends.

PREPARE_RACE_REPEATS=12 kills at that many moments, and races that many pairs of processes.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from empty_registry import FILL
from races import NAME, race

from artifacts.registry import embedded_database
from artifacts.registry.history import AliasChange, ChangeReason
from artifacts.registry.mlflow_registry import MlflowRegistry
from artifacts.registry.registry import TUPLE_TAG
from pipeline.core.errors import RegistryError

REPEATS = int(os.environ.get("PREPARE_RACE_REPEATS", "2"))
MOMENTS = (30, 250, 350, 90, 50, 10, 600, 900, 1200, 1400, 1600, 1700)
"""SQL statements; MLflow needs about 1,800 to make its tables."""
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    ["mlflow.tracking", "mlflow.store.model_registry.sqlalchemy_store"]
)


def promote_first(uri: str, version_tag: str) -> None:
    registry = MlflowRegistry(uri)
    version = registry.register(NAME, Path("weights"), {TUPLE_TAG: version_tag})
    cause = ChangeReason("promote", version_tag)
    registry.move_alias(NAME, AliasChange(f"of-{version_tag}", version, None, cause))


def kill_at_statement(number: int) -> None:
    from sqlalchemy import Engine, event

    left = number

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count)


def promote_killed(uri: str, number: int) -> None:
    kill_at_statement(number)
    promote_first(uri, "a")


def make_in_place_killed(uri: str, number: int) -> None:
    """As MLflow's own client makes its tables."""
    from mlflow.tracking import MlflowClient

    kill_at_statement(number)
    MlflowClient(tracking_uri=uri, registry_uri=uri).search_registered_models()


def promote_at(uri: str, tag: str, barrier: Any, answers: Any) -> None:
    barrier.wait()
    try:
        promote_first(uri, tag)
        answers.put((tag, "promoted"))
    except RegistryError as error:
        answers.put((tag, str(error)))


def killed(target: Any, uri: str, number: int) -> None:
    runner = processes.Process(target=target, args=(uri, number))
    runner.start()
    runner.join(120)
    assert runner.exitcode == -signal.SIGKILL


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """With tables that MLflow makes, not the copy that other tests take."""
    monkeypatch.setattr(embedded_database, "fill", FILL)
    (tmp_path / "folder").mkdir()
    return f"sqlite:///{tmp_path}/folder/registry.db"


def check_usable(uri: str, tag: str = "b") -> None:
    promote_first(uri, tag)
    assert MlflowRegistry(uri).aliases(NAME)[f"of-{tag}"]
    file = Path(uri.removeprefix("sqlite:///"))
    assert {path.name for path in file.parent.iterdir()} == {file.name, f"{file.name}.lock"}


@pytest.mark.parametrize("turn", range(REPEATS))
@pytest.mark.parametrize("target", [promote_killed, make_in_place_killed])
def test_killed_while_the_tables_are_made(uri: str, target: Any, turn: int) -> None:
    killed(target, uri, MOMENTS[turn % len(MOMENTS)])
    check_usable(uri)


@pytest.mark.parametrize("turn", range(REPEATS))
def test_two_processes_at_once(uri: str, turn: int) -> None:
    outcomes = race(processes, [(promote_at, (uri, tag)) for tag in "ab"])
    assert outcomes == {"a": "promoted", "b": "promoted"}
    assert MlflowRegistry(uri).aliases(NAME).keys() == {"of-a", "of-b"}


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file grows beyond the limit, in bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk(uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    with full_disk(100_000), pytest.raises(RegistryError) as caught:
        promote_first(uri, "a")
    assert caught.value.where == uri
    check_usable(uri, "b")
    with full_disk(4096), pytest.raises(RegistryError) as caught:
        promote_first(uri, "c")
    assert caught.value.where == uri
    check_usable(uri, "c")
    assert "Traceback" not in capfd.readouterr().err


def test_an_unfinished_one_with_a_model_is_left_alone(uri: str) -> None:
    promote_first(uri, "a")
    file = Path(uri.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
        database.commit()
    before = file.read_bytes()
    with pytest.raises(RegistryError) as caught:
        MlflowRegistry(uri)
    assert "mlflow db upgrade" in caught.value.hint
    assert file.read_bytes() == before
