"""The order in which a file's bytes are pushed and the file is finished, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from small_checkpoint import safetensors

from pipeline.checkpoint.safetensors_header import read_header
from pipeline.workers.fp8_stream import copy_pipeline
from pipeline.workers.fp8_stream.copy_pipeline import CopyPipeline
from pipeline.workers.fp8_stream.layout import Chunk, plan_shard
from pipeline.workers.fp8_stream.shard_file import ShardFile


class Room:
    """What a thread needs of a caster for pieces that are copied as they are."""

    def room(self, piece: Chunk) -> memoryview:
        return memoryview(bytearray(piece.size))


def test_a_file_is_not_pushed_after_another_thread_has_finished_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread has counted its piece when another one moves the last piece and ends the file."""
    source = tmp_path / "model.safetensors"
    source.write_bytes(safetensors({"a.weight": ("BF16", (64,))}))
    plan = plan_shard(source, read_header(source), "FP8_DYNAMIC", set())
    assert plan is not None
    output = tmp_path / "output"
    output.mkdir()
    monkeypatch.setattr(copy_pipeline, "PUSH_BYTES", 1)  # every piece is enough to be pushed
    monkeypatch.setattr(copy_pipeline, "PIECE_BYTES", 64)
    stream = CopyPipeline([plan], output, "FP8_DYNAMIC", "cpu", Listener())
    caster: Any = Room()
    (file, first), (_, last) = stream._work
    count = ShardFile.piece_done

    def overtaken(self: ShardFile) -> bool:
        done = count(self)
        monkeypatch.setattr(ShardFile, "piece_done", count)
        stream._move(caster, file, last)
        return done

    monkeypatch.setattr(ShardFile, "piece_done", overtaken)
    stream._move(caster, file, first)
    stream._flusher.shutdown()
    for flush in stream._flushes:
        flush.result()
    assert (output / plan.name).read_bytes() == plan.header + b"\7" * 128
