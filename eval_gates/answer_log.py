"""Answer logs: no question is asked twice of one served model.

Each writer has a file of JSON lines, `<log>.<number>-<first row>.jsonl`, under a lock. Rows after
the lock is lost count only up to the next writer's first row.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval_gates.rows import Answer
from prepare.errors import EvaluationDataError
from prepare.untrusted import read_regular

QUESTIONS_FILE = "questions.jsonl"
ANSWERS = "answers.jsonl"
LARGEST_PART = 1 << 30  # bytes


@dataclass(frozen=True, order=True)
class AnswerSegment:
    """Rows of one writer, from `start` on."""

    writer: int
    start: int
    path: Path


def parts_of(answer_log: Path) -> list[AnswerSegment]:
    """Return a log's files, in the writers' order."""
    segments = []
    for path in answer_log.parent.glob(f"{answer_log.stem}.*{answer_log.suffix}"):
        if named := re.fullmatch(r"(\d+)-(\d+)", path.name.split(".")[-2]):
            segments.append(AnswerSegment(int(named[1]), int(named[2]), path))
    return sorted(segments)


def answer_log_of(path: Path) -> str:
    """Return the name of a file's log."""
    return path.name.partition(".")[0]


class AnswerLog:
    """Answers of one served model to ordered questions; read-only without a writer."""

    def __init__(self, path: Path, ids: Sequence[str], writer: int | None = None) -> None:
        self._path = path
        self._ids = ids
        self._writer = writer
        self._own: Path | None = None
        self._read: int | None = None

    def rows(self) -> list[Answer]:
        """Answers so far; EvaluationDataError if a line is damaged."""
        rows: list[Answer] = []
        for part in parts_of(self._path):
            if part.start > len(rows):
                continue  # what was between is gone
            del rows[part.start :]
            rows.extend(self._rows_of(part))
        self._read = len(rows)
        return rows

    def _rows_of(self, part: AnswerSegment) -> Iterator[Answer]:
        try:
            content = read_regular(part.path, LARGEST_PART)
        except FileNotFoundError:
            return
        except OSError as error:
            raise EvaluationDataError(
                f"kept answers cannot be read: {error.strerror}", where=str(part.path)
            ) from error
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines()):
            try:
                row = Answer.from_row(json.loads(line))  # noqa: TID251
                fits = row.id == self._ids[part.start + number]
            except (ValueError, LookupError, RecursionError):
                fits = False
            if not fits:
                raise EvaluationDataError(
                    f"line {number + 1} is not the answer to the question whose turn it is",
                    where=str(part.path),
                    hint="delete the file; its questions will be asked again",
                )
            yield row

    def append(self, rows: Sequence[Answer]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row.to_row(), ensure_ascii=False) + "\n" for row in rows)
        with self._own_part().open("ab") as file:
            # Half of a surrogate pair has no UTF-8, but an escape in JSON.
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())

    def _own_part(self) -> Path:
        if self._writer is None:
            raise ValueError(f"{self._path} was opened to read only")
        if self._own is None:
            # Answers that another writer appended meanwhile must not precede ours unseen.
            start = len(self.rows()) if self._read is None else self._read
            last = max((part.writer for part in parts_of(self._path)), default=0)
            number = max(last + 1, self._writer)
            while self._own is None:  # where locks do not hold, another writer may have the number
                path = self._path.with_suffix(f".{number:06d}-{start:08d}{self._path.suffix}")
                try:
                    path.open("xb").close()
                    self._own = path
                except FileExistsError:
                    number += 1
        return self._own


def read_answers(folder: Path) -> list[Answer]:
    """Return answers in the order of asking."""
    return parse_answers(read_regular(folder / ANSWERS, LARGEST_PART))


def parse_answers(content: bytes) -> list[Answer]:
    """Parse lines; ValueError for a damaged one."""
    try:
        # Not splitlines: an answer may hold Unicode's line separators.
        return [Answer.from_row(json.loads(line)) for line in content.split(b"\n") if line]  # noqa: TID251
    except RecursionError as error:
        raise ValueError("an answer is nested too deep") from error
