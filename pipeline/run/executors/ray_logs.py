"""What is written into logs on a Ray cluster's nodes, sent to a driver that does not see them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import StoreError
from pipeline.core.private_files import open_log

MOST_LOG_BYTES = 1 << 24


@dataclass(frozen=True)
class SentLog:
    """What was written on a node into a log that the driver does not see."""

    path: str
    content: bytes
    agent: str  # who sends it, for its readers


class UnsentLogs:
    """The logs below runs' folders, as far as they were not sent; asked by several threads.

    Args:
        agent: who sends them.
    """

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._sent: dict[Path, int] = {}
        self._runs: set[Path] = set()
        self._asking = threading.Lock()

    def skip(self, run: Path) -> None:
        """What is in the run's logs when the first of its work comes was an earlier agent's."""
        with self._asking:
            if run not in self._runs:
                self._runs.add(run)
                for path in logs_below(run):
                    with suppress(OSError):
                        self._sent[path] = path.stat().st_size

    def take(self, run: Path) -> Iterator[SentLog]:
        """What was added to the run's logs since the last time; of much its end."""
        for log in self._take(run):  # noqa: UP028
            yield log  # a list is not sent what Ray sends

    def _take(self, run: Path) -> list[SentLog]:
        found = []
        with self._asking:
            for path in logs_below(run):
                with suppress(OSError):  # it was removed meanwhile
                    found.append(SentLog(str(path), self._take_of(path), self._agent))
        return [log for log in found if log.content]

    def _take_of(self, path: Path) -> bytes:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            before = self._sent.get(path, 0)
            before = before if before <= size else 0
            left_out = max(0, size - before - MOST_LOG_BYTES)
            file.seek(before + left_out)
            content = file.read(MOST_LOG_BYTES)
            self._sent[path] = file.tell()
        said = f"\n==> {left_out} bytes are in this file on the node alone <==\n" * bool(left_out)
        return said.encode() + content


class KeptLogs:
    """Puts what nodes send of their logs into the run's folder; for several threads."""

    def __init__(self) -> None:
        self._begun: set[tuple[str, str]] = set()
        self._writing = threading.Lock()

    def keep(self, sent: SentLog) -> None:
        """Append it, the first of an agent's under a line that names the agent.

        Raises:
            StoreError: the disk is full, or the folder is gone.
        """
        try:
            with self._writing, open_log(Path(sent.path)) as file:
                if (sent.path, sent.agent) not in self._begun:
                    self._begun.add((sent.path, sent.agent))
                    file.write(f"{chr(10) * bool(file.tell())}==> {sent.agent} <==\n".encode())
                file.write(sent.content)
        except OSError as error:
            raise StoreError(
                f"a log from a node cannot be written: {error.strerror}",
                where=sent.path,
                cure="make room on that disk; the same command continues where this one stopped",
            ) from error


def logs_below(folder: Path) -> list[Path]:
    """The files of logs there, however deep, but for what is removed while they are looked for."""
    found = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return sorted(p for p in found if p.suffix == ".log" and p.is_file() and not p.is_symlink())
