"""Installs `tests/outside_package` as pip would: its files and metadata in a folder of the path."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path

import pytest

from prepare import plugins
from recipes.engines import find_engine

PACKAGE = Path(__file__).parents[1] / "outside_package"


def install(folder: Path) -> None:
    """Copy the package, and write the metadata that its pyproject.toml declares."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    shutil.copytree(PACKAGE / "src", folder, dirs_exist_ok=True)
    name, version = project["name"], project["version"]
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in points.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


@contextmanager
def on_the_path(folder: Path) -> Iterator[None]:
    """What is installed in the folder can be found and imported; nothing of it afterwards."""
    sys.path.append(str(folder))
    forget()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "outside_package"]:
            del sys.modules[name]
        forget()


def declare(patch: pytest.MonkeyPatch, group: str, name: str, value: str) -> None:
    """Let a class of a test's module be found as if a package declared it."""
    plugin = plugins.Plugin(group, name, value, "of a test")
    patch.setitem(plugins._given, (group, name), plugin)


def forget() -> None:
    """Let entry points be read again."""
    invalidate_caches()
    find_engine.cache_clear()
    plugins._declared.cache_clear()
