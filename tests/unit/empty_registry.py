"""MLflow's tables, made once a process: that takes a second of computing, a copy a millisecond."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from artifacts.registry import mlflow_registry

CHECK_OPENABLE = mlflow_registry.check_openable


def open_with_tables(file: Path) -> None:
    """In the place of `check_openable`: MLflow finds its tables in a file that is new."""
    CHECK_OPENABLE(file)
    if file.stat().st_size == 0:
        file.write_bytes(tables())


@cache
def tables() -> bytes:
    """The file of a registry with nothing in it."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_registry, "check_openable", CHECK_OPENABLE)
        file = Path(folder) / "registry.db"
        assert mlflow_registry.MlflowRegistry(f"sqlite:///{file}").names() == []
        return file.read_bytes()
