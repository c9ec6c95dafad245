"""The tiny environment, before it is built and after."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny_environment import Heard, TinySource, let_uv_find, make_tiny_source

from pipeline.environments.environment import Environment, ensure_defined
from prepare.events import NullProgress


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinySource:
    source = make_tiny_source(tmp_path)
    let_uv_find(source, tmp_path, monkeypatch)
    return source


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    source = make_tiny_source(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        let_uv_find(source, folder, monkeypatch)
        ensure_defined(source.definition, folder / "home", NullProgress())
    return folder / "home"


@pytest.fixture
def built(tiny: TinySource, built_once: Path, home: Path) -> Environment:
    shutil.copytree(built_once, home, symlinks=True)
    return ensure_defined(tiny.definition, home, NullProgress())
