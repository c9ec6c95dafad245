"""Progress as it is drawn: plain lines in a log, JSON lines for programs, bars on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time

import pytest

from pipeline.cli import display
from pipeline.cli.display import PlainLines

Capture = pytest.CaptureFixture[str]
DRAW = """
import sys
from pipeline.cli.display import open_display
with open_display(as_json="--json" in sys.argv, plain="--plain" in sys.argv) as progress:
    progress.advance("evaluate", 1, None if "--endless" in sys.argv else 4, "questions")
    progress.note("a note [bold]as it is[/]")
    progress.advance("evaluate", 4, 4, "questions")
"""


def printed(capsys: Capture) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


# --- plain lines --------------------------------------------------------------------------------


def test_a_line_now_and_then_has_an_eta(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "PLAIN_LINE_INTERVAL_S", 0.2)
    lines = PlainLines()
    for task, total in (("evaluate", 30), ("start the server", None)):
        lines.advance(task, 0, total, "s")
        time.sleep(0.3)
        lines.advance(task, 10, total, "s")
        lines.advance(task, 11, total, "s")  # too soon after the last line
    first, second = printed(capsys)
    assert re.fullmatch(r"  evaluate: 10/30 s, eta [01] s", first)
    assert second == "  start the server: 10 s"


# --- JSON lines ---------------------------------------------------------------------------------


# --- bars ---------------------------------------------------------------------------------------


# --- who is watching ----------------------------------------------------------------------------


def draw_on_a_terminal(*arguments: str) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", DRAW, *arguments],
        stderr=theirs,
        stdout=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
    ) as child:
        os.close(theirs)
        drawn = b""
        while True:
            try:
                drawn += os.read(ours, 65536)
            except OSError:  # EIO: the child has closed its end
                break
        os.close(ours)
        assert child.communicate(timeout=20)[0] == b""
    assert child.returncode == 0
    return drawn.decode()


def test_on_a_terminal_there_are_bars_and_notes_stay() -> None:
    drawn = draw_on_a_terminal()
    assert "evaluate" in drawn
    assert "/4" in drawn
    assert "eta" in drawn
    assert "a note [bold]as it is[/]" in drawn
    assert "eta" not in draw_on_a_terminal("--endless").partition("a note")[0]


def test_json_lines_are_the_same_on_a_terminal() -> None:
    events = [json.loads(line) for line in draw_on_a_terminal("--json").splitlines()]
    assert [event["event"] for event in events] == ["progress", "note", "progress"]


def test_plain_lines_are_plain_on_a_terminal_too() -> None:
    assert draw_on_a_terminal("--plain").splitlines() == ["a note [bold]as it is[/]"]
