"""pip's settings, handed on to uv."""

from __future__ import annotations

import ensurepip
import sys
import venv
from pathlib import Path

import pytest

from pipeline.environments import package_sources
from pipeline.environments.package_sources import (
    has_cpu_torch,
    package_source_variables,
    parse_pip_settings,
    pip_settings,
)


@pytest.fixture
def pip_says(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What pip's settings files say in this test."""
    said: dict[str, str] = {}
    monkeypatch.setattr(package_sources, "pip_settings", lambda: said)
    return said


def test_variables_of_pip_are_handed_on(pip_says: dict[str, str]) -> None:
    environment = {"PIP_FIND_LINKS": "/wheels  /more", "PIP_INDEX_URL": "https://mirror/simple"}
    assert package_source_variables(environment) == {
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_DEFAULT_INDEX": "https://mirror/simple",
    }


def test_settings_of_pip_are_handed_on(pip_says: dict[str, str]) -> None:
    pip_says["find-links"] = "\n/wheels\n/more"
    assert package_source_variables({}) == {"UV_FIND_LINKS": "/wheels,/more"}


def test_variables_of_pip_win_over_its_settings(pip_says: dict[str, str]) -> None:
    pip_says["find-links"] = "/settings"
    environment = {"PIP_FIND_LINKS": "/variable"}
    assert package_source_variables(environment) == {"UV_FIND_LINKS": "/variable"}


@pytest.mark.parametrize("index", ["UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_what_uv_was_told_is_left_alone(pip_says: dict[str, str], index: str) -> None:
    pip_says.update({"find-links": "/settings", "index-url": "https://settings"})
    environment = {"UV_FIND_LINKS": "/mine", index: "https://mine", "PIP_FIND_LINKS": "/pip"}
    assert package_source_variables(environment) == {}


def test_nothing_to_hand_on(pip_says: dict[str, str]) -> None:
    assert package_source_variables({}) == {}


def test_listing_of_pip() -> None:
    listing = (
        ":env:.find-links='/environment'\n"
        "global.find-links='\\n/a\\n/b'\n"
        "global.index-url='https://global/simple'\n"
        "install.index-url='https://install/simple'\n"
        "freeze.timeout='10'\n"
        "a line that pip might add\n"
    )
    assert parse_pip_settings(listing) == {
        "find-links": "\n/a\n/b",
        "index-url": "https://install/simple",
    }


def test_real_pip_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[install]\nfind-links =\n    /one\n    /two\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setattr(sys, "executable", _python_with_pip(tmp_path))
    assert pip_settings()["find-links"].split() == ["/one", "/two"]


def test_no_pip_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    bare = str(tmp_path / "bare" / "bin" / "python")
    monkeypatch.setattr(sys, "executable", bare)
    monkeypatch.setattr(sys, "_base_executable", bare)
    assert pip_settings() == {}


def test_no_interpreter_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(sys, "_base_executable", "")
    assert pip_settings() == {}


@pytest.mark.parametrize(
    ("wheel", "found"),
    [
        ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", True),
        ("torch-2.13.0-cp311-cp311-linux_x86_64.whl", False),
        ("torchvision-0.29.0+cpu-cp311-cp311-linux_x86_64.whl", False),
    ],
)
def test_torch_in_a_folder(tmp_path: Path, wheel: str, found: bool) -> None:
    (tmp_path / wheel).touch()
    assert has_cpu_torch(str(tmp_path)) is found
    assert has_cpu_torch(f"/nowhere,file://{tmp_path}") is found


def test_torch_on_a_page_or_nowhere() -> None:
    assert has_cpu_torch("https://mirror/torch")
    assert not has_cpu_torch("")


def _python_with_pip(tmp_path: Path) -> str:
    """An interpreter that has the pip that came with Python, without the time to install it."""
    venv.create(tmp_path / "with-pip", with_pip=False)
    (wheel,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    (packages,) = (tmp_path / "with-pip").glob("lib/python3*/site-packages")
    (packages / "pip.pth").write_text(f"{wheel}\n")
    return str(tmp_path / "with-pip" / "bin" / "python")
