from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from loose_stage import stage_spec
from small_checkpoint import checkpoint_files, write_files

from pipeline.stages.context import advance
from prepare.digest import digest_bytes, digest_file
from prepare.errors import StageError
from prepare.stage import StageRecord, StageSpec
from prepare.store import Store
from recipes.checkpoints.weight_files import weights_digest


@pytest.fixture
def registered(tmp_path: Path) -> Path:
    folder = write_files(tmp_path / "registered", checkpoint_files())
    (folder / "README.md").write_text("the card")
    return folder


def adopt_stage(registered: Path, **changes: Any) -> StageSpec:
    files = {name: digest_bytes(content) for name, content in checkpoint_files().items()}
    made = {"weights_digest": "old", "weights_bytes": 1, "versions": {"a": "1"}}
    parameters = {
        "checkpoint": "c" * 64,
        "quantization": {"kind": "none"},
        "environment": "e" * 64,
        "files": files,
        "made": made,
    }
    store = registered.parent / "store"
    return stage_spec(
        "adopt", "r", {**parameters, **changes}, {}, {"folder": str(registered)}, store
    )


def adopted(registered: Path, **changes: Any) -> tuple[Path, StageRecord]:
    spec = adopt_stage(registered, **changes)
    record = advance(spec, Store(Path(spec.store)), Listener())[0]
    return Store(Path(spec.store)).stage_folder("adopt", spec.key) / "output", record


def test_what_counts_is_linked(registered: Path) -> None:
    output, record = adopted(registered)
    assert sorted(path.name for path in output.iterdir()) == sorted(checkpoint_files())
    for path in output.iterdir():
        assert path.samefile(registered / path.name)
    assert {name: fact for name, fact in record.result.items() if fact is not None} == {
        "versions": {"a": "1"},
        "weights_digest": weights_digest(registered, digest_file),
        "weights_bytes": (registered / "model.safetensors").stat().st_size,
    }


def test_symbolic_links_where_hard_ones_cannot_be(
    registered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.EXDEV, "another file system")

    hard, record = adopted(registered)
    monkeypatch.setattr(os, "link", refused)
    # Other parameters, so that it is another stage.
    soft, again = adopted(registered, environment="e")
    assert all(path.is_symlink() for path in soft.iterdir())
    assert again.result == record.result
    assert {p.name: p.read_bytes() for p in soft.iterdir()} == {
        p.name: p.read_bytes() for p in hard.iterdir()
    }


def test_another_file_than_was_registered(registered: Path) -> None:
    (registered / "config.json").write_text("{}")
    with pytest.raises(StageError) as caught:
        adopted(registered)
    assert caught.value.where == str(registered / "config.json")
