"""What is left of a measurement that was interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured_loads import blocks

from eval_gates.speed.load_log import IN_PROGRESS, LoadLog
from pipeline.core.errors import StoreError


def test_a_damaged_beginning_is_no_other_chance(tmp_path: Path) -> None:
    book = LoadLog(tmp_path)
    begun = book.open({})
    book.start_server_run(begun, 0)
    book.append(blocks([0.9] * 3))
    assert book.open({}).seed == begun.seed
    (tmp_path / IN_PROGRESS).write_text('{"seed": ')
    with pytest.raises(StoreError) as caught:
        book.open({})
    assert caught.value.where == str(tmp_path / IN_PROGRESS)
    assert len(book.loads()) == 6


def test_of_other_weights_nothing_is_kept(tmp_path: Path) -> None:
    book = LoadLog(tmp_path)
    begun = book.open({"candidate": "a"})
    book.append(blocks([0.9]))
    assert book.open({"candidate": "b"}).seed != begun.seed
    assert book.loads() == []
