"""A run opens each file of a checkpoint once before its first stage."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from quantized_checkpoint import WEIGHTS, source_files, source_layout
from small_checkpoint import safetensors, write_files
from sound_variants import source_files as sound_files
from sound_variants import variant_files

from artifacts.requests import ModelRequest
from pipeline.environments.settings import Settings
from pipeline.run import model as whole_run
from recipes.checkpoints.small_files import TEMPLATES_FOLDER
from recipes.checkpoints.weight_files import INDEX

_watched: list[tuple[Path, Counter[str]]] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _watched or not isinstance(arguments[0], (str, bytes)):
        return
    for folder, opened in _watched:
        path = Path(os.fsdecode(arguments[0]))
        if path.is_relative_to(folder):
            opened[path.relative_to(folder).as_posix()] += 1


sys.addaudithook(_note)  # it cannot be removed, and does nothing without a watched folder


@contextmanager
def watching(folder: Path) -> Iterator[Counter[str]]:
    opened = Counter[str]()
    _watched.append((folder, opened))
    try:
        yield opened
    finally:
        _watched.remove((folder, opened))


class FirstStageReached(BaseException):
    """What follows is the work of stages."""


def run_to_first_stage(
    request: ModelRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise FirstStageReached

    monkeypatch.setattr(whole_run, "check_serving", lambda *_: None)
    monkeypatch.setattr(whole_run, "finish_plan", stop)
    settings = Settings(home=folder / "home", store=folder / "store")
    with pytest.raises(FirstStageReached):
        whole_run.run_model(request, settings, Listener())


def request_for(checkpoint: Path, **options: Any) -> ModelRequest:
    defaults: dict[str, Any] = {"profile": "cpu", "policy": "demo", "promote": False}
    return ModelRequest(checkpoint=str(checkpoint), **(defaults | options))


def sharded(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same checkpoint with two weight files and an index."""
    layout = source_layout()
    names = sorted(layout)
    halves = {"model-00001-of-00002.safetensors": names[::2]}
    halves["model-00002-of-00002.safetensors"] = names[1::2]
    weight_map = {name: file for file, held in halves.items() for name in held}
    index = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    shards = {
        file: safetensors({name: layout[name] for name in held}) for file, held in halves.items()
    }
    others = {name: content for name, content in files.items() if name != WEIGHTS}
    return others | shards | {INDEX: index}


def check_opened_once(opened: Counter[str], files: Collection[str]) -> None:
    """A weight file is opened twice: its header is checked first, and hashing can take hours."""
    expected = {name: 2 if name.endswith(".safetensors") else 1 for name in files}
    assert dict(opened) == expected


@pytest.mark.parametrize("is_sharded", [False, True])
def test_each_file_of_a_checkpoint_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sharded: bool
) -> None:
    files = source_files() | {"README.md": b"---\nlicense: mit\n---\n"}
    if is_sharded:
        files = sharded(files)
    checkpoint = write_files(tmp_path / "model", files)
    write_files(checkpoint / TEMPLATES_FOLDER, {"rag.jinja": b"{{ messages }}"})
    with watching(checkpoint) as opened:
        run_to_first_stage(request_for(checkpoint, recipes=("fp8-dynamic",)), tmp_path, monkeypatch)
    check_opened_once(opened, [*files, f"{TEMPLATES_FOLDER}/rag.jinja"])


def test_each_file_of_an_adopted_variant_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = {"README.md": b"---\nlicense: mit\n---\n"}
    files = sound_files() | card
    checkpoint = write_files(tmp_path / "model", files)
    quantized = variant_files("fp8-dynamic") | card
    del quantized["recipe.yaml"]  # which only its producer reads
    variant = write_files(tmp_path / "variant", quantized)
    with watching(checkpoint) as opened, watching(variant) as opened_of_variant:
        request = request_for(checkpoint, variants=(str(variant),))
        run_to_first_stage(request, tmp_path, monkeypatch)
    check_opened_once(opened, files)
    check_opened_once(opened_of_variant, quantized)
