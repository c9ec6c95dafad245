from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from outside import forget, on_the_path

from prepare.errors import UsageError
from prepare.plugins import (
    QUANTIZERS,
    SUITES,
    find_plugin,
    load_class,
    plugin_names,
)
from recipes.quantization import Quantization

GOOD = "class Good:\n    pass\n"


def declare(folder: Path, package: str, points: str, group: str = SUITES) -> None:
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{points}\n")
    forget()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with on_the_path(tmp_path):
        yield tmp_path


def test_ours_are_found_without_metadata_of_an_installation() -> None:
    assert {"mmlu", "humaneval", "mbpp", "rouge", "lm_eval"} <= set(plugin_names(SUITES))


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (None, "outside_one:Good"),
        (GOOD, "outside_two:Other"),
        (GOOD, "outside_three:Good"),  # not of the base that is asked for
        ("raise RuntimeError('of the plug-in')", "outside_four:Good"),
        (GOOD, "outside_five"),
    ],
)
def test_a_broken_one_is_named_with_its_package(path: Path, code: str | None, value: str) -> None:
    if code is not None:
        (path / f"{value.partition(':')[0]}.py").write_text(code)
    declare(path, "maker", f"new = {value}")
    assert "new" in plugin_names(SUITES)
    with pytest.raises(UsageError) as caught:
        load_class(SUITES, "new", Path)
    assert "maker 1.0" in caught.value.where
    assert f"new = {value}" in caught.value.where


def test_a_missing_method_is_named_when_the_class_is_loaded(path: Path) -> None:
    code = "from recipes.quantization import Quantization\nclass Good(Quantization): pass\n"
    (path / "outside_seven.py").write_text(code)
    declare(path, "maker", "new = outside_seven:Good", QUANTIZERS)
    with pytest.raises(UsageError, match="weight_formats") as caught:
        load_class(QUANTIZERS, "new", Quantization)
    assert "maker 1.0" in caught.value.where


def test_two_packages_with_one_name(path: Path) -> None:
    declare(path, "maker", "mmlu = outside_six:Good")
    with pytest.raises(UsageError) as caught:
        find_plugin(SUITES, "mmlu")
    assert "maker 1.0" in caught.value.where


def test_a_worker_imports_it_by_its_file(path: Path) -> None:
    (path / "outside_eight").mkdir()
    (path / "outside_eight" / "__init__.py").write_text("")
    (path / "outside_eight" / "inner.py").write_text(GOOD)
    declare(path, "maker", "new = outside_eight.inner:Good")
    given = find_plugin(SUITES, "new").for_worker()
    code = (
        "from prepare.plugins import find_plugin, use_given\n"
        f"use_given({given!r})\nprint(find_plugin({SUITES!r}, 'new').load().__name__)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout == "Good\n"
