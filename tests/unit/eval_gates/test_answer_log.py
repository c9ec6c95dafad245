"""The answer log after kills and damage: no complete answer is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval_gates.answer_log import AnswerLog
from eval_gates.rows import Answer
from prepare.errors import EvaluationDataError

IDS = [f"anatomy/{number}" for number in range(20_000)]
QUICK = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def row(number: int, answer: Any = "a summary") -> Answer:
    return Answer(IDS[number], f"{number:064x}", (number % 3) / 2, answer)


def rows(start: int, stop: int) -> list[Answer]:
    return [row(number) for number in range(start, stop)]


@pytest.fixture
def name(tmp_path: Path) -> Path:
    return tmp_path / "answers" / "log.jsonl"


@pytest.fixture
def file(name: Path) -> Path:
    return name.with_name("log.000001-00000000.jsonl")


@pytest.fixture
def answer_log(name: Path) -> AnswerLog:
    return AnswerLog(name, IDS, writer=1)


@QUICK
@given(data=st.data())
def test_a_kill_anywhere_loses_no_whole_answer(data: st.DataObject, name: Path, file: Path) -> None:
    for part in name.parent.glob("*"):
        part.unlink()
    AnswerLog(name, IDS, writer=1).append([row(0, "é"), row(1, "\u2028"), row(2)])
    content = file.read_bytes()
    cut = data.draw(st.integers(0, len(content)), label="bytes written before the kill")
    file.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")

    answer_log = AnswerLog(name, IDS, writer=1)
    before = answer_log.rows()
    assert [each.id for each in before] == IDS[:whole]

    answer_log.append(rows(whole, 5))
    assert AnswerLog(name, IDS).rows() == before + rows(whole, 5)


# What a text splits at that a file does not, what JSON escapes, and what is no UTF-8.
NEWLINES = [
    *("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\ud83d", "\x00"),
]


@pytest.mark.parametrize("text", NEWLINES)
def test_what_looks_like_a_newline_is_part_of_the_answer(
    answer_log: AnswerLog, file: Path, text: str
) -> None:
    written = [row(0, f"one{text}two"), row(1, text)]
    answer_log.append(written)

    assert answer_log.rows() == written
    assert file.read_bytes().count(b"\n") == 2
    file.read_text(encoding="utf-8")  # anyone can read it


def refused(answer_log: AnswerLog) -> EvaluationDataError:
    with pytest.raises(EvaluationDataError) as caught:
        answer_log.rows()
    return caught.value


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{", b"null", b"[]", b'"anatomy/1"', b"{}", b'{"id": 1}', b'{"id": "anatomy/2"}'),
        *(b"\x00\x00", b'{"id": "\xff\xfe"}'),
    ],
)
def test_a_damaged_line_is_told(answer_log: AnswerLog, file: Path, line: bytes) -> None:
    answer_log.append(rows(0, 1))
    with file.open("ab") as end:
        end.write(line + b"\n")

    error = refused(answer_log)
    assert "line 2" in str(error)
    assert str(file) in str(error)
    assert "delete the file" in str(error)


APPENDING = """
import sys
from pathlib import Path
from eval_gates.answer_log import AnswerLog
from eval_gates.rows import Answer
ids = [f"anatomy/{number}" for number in range(1_000_000)]
answer_log = AnswerLog(Path(sys.argv[1]), ids, writer=1)
for start in range(0, len(ids), 50):
    answer_log.append([Answer(i, "p", 1.0, "x" * 2000) for i in ids[start:start + 50]])
    print(start + 50, flush=True)
"""


def test_a_killed_process_leaves_all_that_it_had_appended(
    answer_log: AnswerLog, name: Path
) -> None:
    command = [sys.executable, "-c", APPENDING, str(name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(8):
            said = [writer.stdout.readline()]
        os.kill(writer.pid, signal.SIGKILL)
        said += [line for line in writer.stdout if line.endswith("\n")]
    acknowledged = int(said[-1])

    kept = len(answer_log.rows())
    assert kept >= acknowledged >= 400
    answer_log.append(rows(kept, kept + 1))
    assert len(answer_log.rows()) == kept + 1


class TestSeveralWriters:
    def test_a_later_writer_goes_on(self, name: Path) -> None:
        AnswerLog(name, IDS, writer=1).append(rows(0, 2))
        AnswerLog(name, IDS, writer=2).append(rows(2, 5))
        third = AnswerLog(name, IDS, writer=4)
        third.append(rows(5, 6))
        third.append(rows(6, 8))
        assert AnswerLog(name, IDS).rows() == rows(0, 8)
        assert {path.name for path in name.parent.iterdir()} == {
            "log.000001-00000000.jsonl",
            "log.000002-00000002.jsonl",
            "log.000004-00000005.jsonl",
        }

    @pytest.mark.parametrize("answered_before", [False, True])
    def test_one_who_was_followed_and_comes_back_does_no_harm(
        self, name: Path, answered_before: bool
    ) -> None:
        away, follower = AnswerLog(name, IDS, writer=1), AnswerLog(name, IDS, writer=2)
        if answered_before:
            away.append(rows(0, 2))
        kept = away.rows()
        assert follower.rows() == kept
        away.append([row(len(kept), "earlier"), row(len(kept) + 1, "earlier")])
        answers = [row(len(kept) + number, "asked again") for number in range(3)]
        follower.append(answers[:2])
        away.append([row(len(kept) + 2, "earlier")])
        assert follower.rows() == kept + answers[:2]
        follower.append(answers[2:])
        away.append([row(len(kept) + 3, "earlier")])
        assert AnswerLog(name, IDS).rows() == kept + answers

    def test_after_a_part_that_was_deleted_its_questions_are_asked_again(self, name: Path) -> None:
        for number in range(3):
            AnswerLog(name, IDS, writer=number + 1).append(rows(2 * number, 2 * number + 2))
        (name.parent / "log.000002-00000002.jsonl").unlink()
        answer_log = AnswerLog(name, IDS, writer=4)
        assert answer_log.rows() == rows(0, 2)
        answer_log.append(rows(2, 3))
        assert AnswerLog(name, IDS).rows() == rows(0, 3)
