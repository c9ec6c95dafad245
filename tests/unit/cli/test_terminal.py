"""What reaches the terminal and the log: foreign text only shows, our own colours act."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.text import Text

from pipeline.cli.tables import print_table
from pipeline.cli.terminal import SanitizedStream, guard_streams, open_console

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202e[/]\n::error::x ##[command]y"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def acts(text: str) -> bool:
    return bool(set(text) & set("\x1b\x07\u202e")) or "\n::" in text or "##[" in text


def test_prints_and_tables_only_show_foreign_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with guard_streams():
        print(HOSTILE, HOSTILE)
        print("", "::error::x")
        typer.echo(HOSTILE)
        print_table(["name"], [[HOSTILE]])
        print(HOSTILE, file=sys.stderr)
    assert "owned" in out.getvalue()
    assert "owned" in err.getvalue()
    assert not acts("\n" + out.getvalue())
    assert not acts("\n" + err.getvalue())


def test_a_letter_that_the_terminal_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="latin-1"))
    with guard_streams():
        print("\u6a21\u00e9")
        print_table(["name"], [["\u578b"]])
        sys.stdout.flush()
    assert b"\\u6a21\xe9" in out.getvalue()
    assert b"\\u578b" in out.getvalue()


def test_closed_streams_take_whatever_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with guard_streams():
        print("a line")
        print_table(["name"], [["x"]])
        print("a fault", file=sys.stderr)
    assert sys.stdout is sys.stderr is None


@pytest.mark.parametrize(
    "line", ["::error::x", " \t::e", "\u00a0::e", "\u3000 ::e", "a ##[e]x", "####[e]", "##vso[x]y"]
)
def test_no_cut_between_two_writes_makes_a_command(line: str) -> None:
    """A library may write a text letter by letter."""
    cuts = [[line[:n], line[n:]] for n in range(len(line))]
    for pieces in [*cuts, *([first, "", *second] for first, second in cuts), list(line)]:
        out = io.StringIO()
        stream = SanitizedStream(out)
        for piece in ["before\n", *pieces, "\n"]:
            stream.write(piece)
        shown = out.getvalue()
        assert not re.search(r"^\s*::|##[a-z]*\[", shown, re.MULTILINE), (pieces, shown)
        assert out.getvalue().count("\n") == 2


def test_what_is_no_command_is_written_as_it_is() -> None:
    out = io.StringIO()
    stream = SanitizedStream(out)
    pieces = ["a:", ":b #", "# [x]\n", ":", " :\n", "#", "\n", "#", "[x]\n", ":\n", ":x\n", ""]
    for piece in pieces:
        stream.write(piece)
    assert out.getvalue() == "".join(pieces)


def test_our_colours_act_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with guard_streams():
        open_console().print(Text("pass \x1b[2J", style="green"))
    assert "\x1b[32mpass \\u001b[2J" in out.getvalue()


@pytest.mark.parametrize("closed", [("stdout",), ("stderr",), ("stdout", "stderr")])
def test_a_reader_that_has_ended_changes_no_outcome(
    tmp_path: Path, closed: tuple[str, ...]
) -> None:
    """As `prepare model ... 2>&1 | head`, whose reader ends long before the run."""
    code = (
        "import sys; from pipeline.cli.main import main\n"
        "from pipeline.cli.display import open_display\n"
        "from pipeline.cli.tables import print_table\n"
        "def command(standalone_mode):\n"
        "    with open_display(as_json=False, plain=True) as progress:\n"
        "        for number in range(3):\n"
        "            progress.note('x' * 100_000); print('y' * 100_000); sys.stdout.flush()\n"
        "    print_table(['name'], [['value']])\n"
        "    return 5\n"
        "main(command)\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    with (tmp_path / "open").open("w") as kept:
        streams = {name: writing if name in closed else kept for name in ("stdout", "stderr")}
        ended = subprocess.run([sys.executable, "-c", code], **streams, timeout=60)
    os.close(writing)
    assert ended.returncode == 5
    assert "Traceback" not in (tmp_path / "open").read_text()


def test_a_terminal_that_was_closed_changes_no_outcome() -> None:
    """As `prepare model ... & disown`, then a logout: no SIGHUP comes, and writes fail with EIO."""
    code = (
        "import sys; from pipeline.cli.main import main\n"
        "def command(standalone_mode):\n"
        "    print('x', file=sys.stderr, flush=True); print('y', flush=True)\n"
        "    return 5\n"
        "sys.stdin.readline(); main(command)\n"
    )
    terminal, ours = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=ours,
        stderr=ours,
        start_new_session=True,
    ) as child:
        os.close(ours)
        os.close(terminal)
        child.communicate(b"\n", timeout=60)
    assert child.returncode == 5
