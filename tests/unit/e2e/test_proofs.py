from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

E2E = Path(__file__).parents[2] / "e2e"


@pytest.fixture
def proofs() -> ModuleType:
    """The module, which lies beside the tests that it is for and not on this folder's path."""
    spec = importlib.util.spec_from_file_location("proofs_under_test", E2E / "proofs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "a.txt").write_text("torch==1")
    (tmp_path / "locks" / "b.txt").write_text("vllm==1")
    return tmp_path


def test_the_digest_is_of_names_and_contents(proofs: ModuleType, tree: Path) -> None:
    before = proofs.digest_of(["locks/*"], tree)
    assert proofs.digest_of(["locks/b*", "locks/*"], tree) == before
    (tree / "locks" / "a.txt").write_text("torch==2")
    changed = proofs.digest_of(["locks/*"], tree)
    (tree / "locks" / "a.txt").rename(tree / "locks" / "c.txt")
    assert len({before, changed, proofs.digest_of(["locks/*"], tree)}) == 3


def test_a_file_that_comes_to_it_counts(proofs: ModuleType, tree: Path) -> None:
    before = proofs.digest_of(["locks/*"], tree)
    (tree / "locks" / "c.txt").write_text("")
    assert proofs.digest_of(["locks/*"], tree) != before


def test_a_pattern_without_files_is_refused(proofs: ModuleType, tree: Path) -> None:
    with pytest.raises(ValueError, match="no-such"):
        proofs.digest_of(["locks/*", "no-such/*"], tree)


def test_the_sets_name_files_that_there_are(proofs: ModuleType) -> None:
    for patterns in (proofs.QUANTIZING, proofs.SERVING, proofs.ASKING, proofs.REGISTRIES):
        proofs.digest_of((*proofs.SHARED, *patterns))


def test_what_passed_is_kept_by_module_and_features(proofs: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "proofs.json"
    assert proofs.read_proofs(file) == {}
    proofs.write_proofs({"test_a.py": "1", "test_b.py": "2"}, "avx2", file)
    proofs.write_proofs({"test_a.py": "3"}, "avx2,avx512f", file)
    assert proofs.read_proofs(file) == {
        "test_a.py": {"avx2": "1", "avx2,avx512f": "3"},
        "test_b.py": {"avx2": "2"},
    }
