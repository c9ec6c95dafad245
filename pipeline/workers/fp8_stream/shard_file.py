"""An output file, written under another name until it is complete."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from pipeline.core.errors import CheckpointError
from pipeline.core.fsync import flush_folder
from pipeline.workers.fp8_stream.layout import Chunk, ShardPlan

UNFINISHED = ".unfinished"


class ShardFile:
    """Reads and writes at any place from any thread; :meth:`finish` renames the file."""

    def __init__(self, plan: ShardPlan, folder: Path, pieces: int) -> None:
        """Create the file in its full size, so that a full disk is noticed before the work."""
        self._plan = plan
        self._folder = folder
        self._final = folder / plan.name
        self._unfinished = unfinished_path(self._final)
        self._waiting = pieces
        self._counting = threading.Lock()
        # The kernel lets one thread at a time write to a file, and the others burn time waiting.
        self._writing = threading.Lock()
        self._open: list[int] = []
        try:
            self._source = self._open_file(plan.source, os.O_RDONLY)
            os.posix_fadvise(self._source, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            self._target = self._open_file(self._unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.posix_fallocate(self._target, 0, plan.size)
            self.write(memoryview(plan.header), 0)
        except BaseException:
            self.close()
            raise

    def read(self, piece: Chunk, room: memoryview) -> None:
        """Read the piece's bytes of the source.

        Raises:
            CheckpointError: the source ends before.
        """
        position = piece.begin
        while room:
            count = os.preadv(self._source, [room], position)
            if not count:
                raise CheckpointError(
                    "the weights became shorter while they were read", where=str(self._plan.source)
                )
            room, position = room[count:], position + count

    def write(self, data: memoryview, position: int) -> None:
        with self._writing:
            while data:
                count = os.pwrite(self._target, data, position)
                data, position = data[count:], position + count

    def piece_done(self) -> bool:
        with self._counting:
            self._waiting -= 1
            return self._waiting == 0

    def push(self) -> None:
        os.fdatasync(self._target)

    def finish(self) -> None:
        os.fsync(self._target)
        self.close()
        self._unfinished.replace(self._final)
        flush_folder(self._folder)

    def close(self) -> None:
        """Close source and file; the file keeps its current name."""
        while self._open:
            os.close(self._open.pop())

    def _open_file(self, path: Path, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        self._open.append(descriptor)
        return descriptor


def unfinished_path(final: Path) -> Path:
    """Return the name of an incomplete file, which no loader takes for weights."""
    return final.with_name(f".{final.name}{UNFINISHED}")
