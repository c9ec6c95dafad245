from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.environments.settings import Settings, load_settings

VARIABLES = (
    "PREPARE_HOME",
    "PREPARE_STORE",
    "PREPARE_SETTINGS",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path / "here")


def users_file(tmp_path: Path) -> Path:
    file = tmp_path / "user" / ".config" / "prepare" / "settings.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def said(tmp_path: Path, text: str) -> Settings:
    users_file(tmp_path).write_text(text)
    return load_settings()


def test_nothing_said(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.home == tmp_path / "user" / ".cache" / "prepare"
    assert settings.store == settings.home / "store"
    assert settings.environments == {}


def test_variables_win_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "home: /from/file\nstore: /store/file\n"
    assert said(tmp_path, text).home == Path("/from/file")
    assert said(tmp_path, text).store == Path("/store/file")
    monkeypatch.setenv("PREPARE_HOME", "/from/variable")
    monkeypatch.setenv("PREPARE_STORE", "/store/variable")
    assert said(tmp_path, text).home == Path("/from/variable")
    assert said(tmp_path, text).store == Path("/store/variable")


def test_paths_are_meant_from_the_files_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(
        "home: data\nstore: ~/store\nenvironments:\n  serve: {python: vllm/bin/python}\n"
    )
    monkeypatch.setenv("PREPARE_SETTINGS", str(file))
    settings = load_settings()
    assert settings.home == tmp_path / "data"
    assert settings.store == tmp_path / "user" / "store"
    assert settings.environments["serve"].python == tmp_path / "vllm" / "bin" / "python"
