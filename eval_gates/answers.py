"""Answers kept as they come in, so that no question is asked twice of one served model.

An answer book is one file of JSON lines: a row a question, in the order in which the questions
are asked, so always a beginning of them. Batches are appended and flushed to disk; what a kill
tore off is cut away. A gate that was left undecided goes on from here, and so does a changed
policy, which judges the same answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.core.errors import EvaluationDataError

QUESTIONS = "questions.jsonl"
ANSWERS = "answers.jsonl"
Rows = list[dict[str, Any]]
_LOOKED_AT_ONCE = 1 << 16  # bytes


class AnswerBook:
    """The answers of one served model to one ordered list of questions.

    Args:
        path: its file; need not exist yet.
        ids: of the questions, in the order in which they are asked.
    """

    def __init__(self, path: Path, ids: Sequence[str]) -> None:
        self._path = path
        self._ids = ids

    def rows(self) -> Rows:
        """The answers so far, in the questions' order.

        Raises:
            EvaluationDataError: a line cannot be read, or is no answer to the question whose turn
                it is.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        rows: Rows = []
        for number, line in enumerate(whole.splitlines()):
            try:
                row = json.loads(line)
                fits = row["id"] == self._ids[number]
            except (ValueError, LookupError, TypeError):
                fits = False
            if not fits:
                raise EvaluationDataError(
                    f"line {number + 1} is not the answer to the question whose turn it is",
                    where=str(self._path),
                    cure="delete the file; its questions will be asked again",
                )
            rows.append(row)
        return rows

    def append(self, rows: Rows) -> None:
        """Add answers and flush them to disk; a torn last line is cut away first."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with self._path.open("a+b") as file:
            file.truncate(_end_of_whole_lines(file))
            file.seek(0, os.SEEK_END)
            # Half of a surrogate pair is no UTF-8; as an escape it is JSON, and comes back.
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())


def _end_of_whole_lines(file: BinaryIO) -> int:
    """Where the last whole line ends; looked for from the end, for a book is appended to often."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _LOOKED_AT_ONCE)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def read_answers(folder: Path) -> Rows:
    """The answers in that stage folder, in the order of asking."""
    return parse_answers((folder / ANSWERS).read_bytes())


def parse_answers(content: bytes) -> Rows:
    """The rows of an `answers.jsonl`; raises ValueError where a line is damaged."""
    # Not splitlines: an answer may hold Unicode's own line separators.
    return [json.loads(line) for line in content.split(b"\n") if line]
