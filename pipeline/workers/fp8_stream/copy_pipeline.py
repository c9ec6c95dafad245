"""Moves the pieces of all files from disk to disk, in several threads that do all three steps.

Every place is known in advance, so a thread takes the next piece, reads, casts and writes it; while
one waits for memory or disk the others cast. torch and system calls release the GIL. Pieces are
ordered as in the output, so writes are sequential. One more thread starts the write-back and names
finished files.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pipeline.core.events import Progress
from pipeline.workers.fp8_stream.cast import Caster
from pipeline.workers.fp8_stream.layout import Chunk, ShardPlan, pieces
from pipeline.workers.fp8_stream.shard_file import ShardFile

PIECE_BYTES = 2**21  # fits the cores' caches with what is made of it
ACCELERATOR_PIECE_BYTES = 2**25  # large enough that transfers do not wait for each other
MAX_THREADS = 8
PUSH_BYTES = 2**26  # written to the disk while the next ones are cast
REPORT_SECONDS = 0.25


class CopyPipeline:
    """Files of one stream, made in a folder; progress is in bytes read."""

    def __init__(
        self, plans: list[ShardPlan], output: Path, scheme: str, device: str, progress: Progress
    ) -> None:
        self._plans = plans
        self._output = output
        self._scheme = scheme
        self._device = device
        self._piece_bytes = PIECE_BYTES if device == "cpu" else ACCELERATOR_PIECE_BYTES
        self._work = self._all_work()
        self._taking = threading.Lock()
        self._counting = threading.Lock()
        self._stopped = threading.Event()
        self._progress = progress
        self._total = sum(plan.source_bytes for plan in plans)
        self._read = self._unpushed = 0  # bytes
        self._reported = 0.0  # when
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._flushes: list[Future[None]] = []
        self._files: list[ShardFile] = []

    def run(self) -> None:
        """Make all files.

        Raises:
            CheckpointError: a source file has become shorter.
            OSError: the disk is full, or fails.
        """
        import torch

        # One more than cores: one of them writes, or waits for another that does.
        threads = min(MAX_THREADS, len(os.sched_getaffinity(0))) + 1
        threads_of_torch = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(threads, thread_name_prefix="cast") as casting:
                ends = [casting.submit(self._carry) for _ in range(threads)]
            for end in [*ends, *self._flushes]:
                end.result()
        finally:
            self._flusher.shutdown()
            for file in self._files:
                file.close()
            torch.set_num_threads(threads_of_torch)

    def _all_work(self) -> Iterator[tuple[ShardFile, Chunk]]:
        """Yield pieces in the order of the output; a file is opened when its first piece comes."""
        for plan in self._plans:
            cut = [p for m in plan.moves for p in pieces(m, self._scheme, self._piece_bytes)]
            file = ShardFile(plan, self._output, len(cut))
            self._files.append(file)
            if not cut:
                self._flush(file.finish)
            for piece in cut:
                yield file, piece

    def _carry(self) -> None:
        """Take, read, cast and write pieces until none is left; run by each thread."""
        import torch

        torch.set_num_threads(1)  # of this thread: the pieces are cast side by side as it is
        try:
            caster = Caster(self._scheme, self._device, self._largest_piece())
            while not self._stopped.is_set():
                with self._taking:
                    file, piece = next(self._work, (None, None))
                if file is None or piece is None:
                    return
                self._move(caster, file, piece)
        except BaseException:
            self._stopped.set()
            raise

    def _move(self, caster: Caster, file: ShardFile, piece: Chunk) -> None:
        data = caster.room(piece)
        file.read(piece, data)
        if piece.rows:
            data, scales = caster.cast(piece)
            file.write(scales, piece.scale_target)
        file.write(data, piece.target)
        if self._count(piece.size, len(data)):
            # Before this piece is counted: then the file is still open when its turn comes.
            self._flush(file.push)
        if file.piece_done():
            self._flush(file.finish)

    def _count(self, read: int, written: int) -> bool:
        """Report bytes a few times a second; return whether to start the write-back."""
        with self._counting:
            self._read += read
            self._unpushed += written
            now = time.monotonic()
            if now - self._reported >= REPORT_SECONDS or self._read == self._total:
                self._reported = now
                task = f"quantize ({self._scheme})"
                self._progress.advance(task, self._read, self._total, "bytes")
            is_full = self._unpushed >= PUSH_BYTES
            if is_full:
                self._unpushed = 0
            return is_full

    def _flush(self, step: Callable[[], None]) -> None:
        self._flushes.append(self._flusher.submit(self._run_flush, step))

    def _run_flush(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException:
            self._stopped.set()
            raise

    def _largest_piece(self) -> int:
        moves = (move for plan in self._plans for move in plan.moves if move.size)
        firsts = (next(pieces(move, self._scheme, self._piece_bytes)) for move in moves)
        return max((piece.size for piece in firsts), default=0)
