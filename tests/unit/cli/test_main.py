"""The command as a whole: its flags, help, exit codes, and that it starts light."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from sample_reports import run_report
from typer.testing import CliRunner

from pipeline.cli.main import app, main, report_error
from pipeline.plan.recorded_arm import is_recorded
from prepare.errors import ExitCode, UsageError
from prepare.interruption import INTERRUPTIONS
from prepare.store import RUN_RECORD, RunFolders, Store

HEAVY = {
    *("torch", "transformers", "vllm", "llmcompressor", "awq", "lm_eval", "rouge_score"),
    *("mlflow", "sqlalchemy", "numpy", "scipy", "huggingface_hub", "datasets", "httpx"),
    *("prepare.record", "yaml", "eval_gates", "artifacts.run_record"),
    *("pipeline.plan", "pipeline.run"),
}
PREPARE = (sys.executable, "-m", "prepare")


# Adding a flag is a decision: it is a promise to everyone's scripts.
def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


TREE = dict(commands(typer.main.get_command(app)))


def prepare(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: v for name, v in os.environ.items() if not name.startswith("PREPARE_")}
    return subprocess.run(
        [*PREPARE, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env=clean | {"PREPARE_HOME": str(folder), "TMPDIR": str(folder)} | environment,
        check=False,
    )


# --- light, complete, documented ----------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["model", "--help"], ["--version"]])
def test_starting_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, json\n"
        "from pipeline.cli.main import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        f"print(json.dumps(sorted({HEAVY!r} & set(sys.modules))), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stderr) == []
    assert done.stdout


@pytest.mark.parametrize("words", sorted(TREE))
def test_every_command_explains_itself_with_an_example(words: str) -> None:
    result = CliRunner().invoke(app, [*words.split(), "--help"])
    assert result.exit_code == 0
    assert re.search("Examples?", result.output)
    assert f"prepare {words}" in result.output


# --- ways to end --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Usage:"),
        (("nonsense",), "No such command 'nonsense'"),
        (("model", "x", "--nonsense"), "No such option: --nonsense"),
    ],
)
def test_a_wrong_command_line_is_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = prepare(tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unexpected_error_is_3_and_its_traceback_is_in_a_file(tmp_path: Path) -> None:
    folder = RunFolders(Store(tmp_path / "store")).make("20261121-100000-000001")
    (folder / RUN_RECORD).write_text(run_report().model_dump_json())
    defect = tmp_path / "defect"
    defect.mkdir()
    (defect / "sitecustomize.py").write_text(
        "import artifacts.run_record\n"
        "artifacts.run_record.read_run = lambda folder: {}['checkpoint']\n"
    )
    done = prepare(tmp_path, "runs", PYTHONPATH=str(defect))
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "error: unexpected KeyError" in done.stderr
    [log] = tmp_path.glob("prepare-crash-*.log")
    assert f"where: {log}" in done.stderr
    assert "Traceback" in log.read_text()
    assert "KeyError: 'checkpoint'" in log.read_text()


def test_with_json_an_error_of_any_command_is_one_object(tmp_path: Path) -> None:
    for words in ("promote", "rollback nothing", "verify x", "plan ./nothing", "tune ./nothing"):
        done = prepare(tmp_path, *words.split(), "--json")
        found = json.loads(done.stdout)
        assert found["error"]["message"], words
        assert found["run"] is None
        assert done.returncode in (1, 2)
        assert "error: " in done.stderr


def test_what_may_not_be_read_is_no_defect(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(PermissionError(13, "Permission denied", "/a/b")) == 1
    assert "permission is denied\n  where: /a/b" in capsys.readouterr().err


def catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


WAITS = """
import sys
from pathlib import Path
from pipeline.cli.main import main
from prepare.store import RUN_RECORD, RunFolders, Store

def command(standalone_mode):
    with Store(Path(sys.argv[1])).hold("key", lambda text: print(text, flush=True)):
        pass

main(command)
"""


@contextmanager
def waiting_stage(folder: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command whose stage another has claimed, and which says so and waits for that other."""
    store = folder / "store"
    with Store(store).hold("key"):
        child = subprocess.Popen(
            [sys.executable, "-c", WAITS, str(store)], stdout=subprocess.PIPE, text=True, **options
        )
        try:
            assert child.stdout is not None
            assert f"process {os.getpid()} of " in child.stdout.readline()  # whom it waits for
            yield child
        finally:
            child.kill()
            child.communicate()


def hear_signals() -> None:
    """A shell's background jobs, and so a CI job's processes, inherit SIGINT as ignored."""
    for number in INTERRUPTIONS:
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", INTERRUPTIONS)
def test_an_interrupted_command_is_130(tmp_path: Path, number: signal.Signals) -> None:
    with waiting_stage(tmp_path, preexec_fn=hear_signals, stderr=subprocess.PIPE) as child:
        child.send_signal(number)
        said = child.communicate(timeout=20)
    assert child.returncode == 130
    assert said == ("", "interrupted\n")


def test_one_whose_terminal_goes_away_is_interrupted(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()

    def in_terminal() -> None:
        hear_signals()
        kept = os.dup(1)
        os.login_tty(theirs)
        os.dup2(kept, 1)

    with waiting_stage(tmp_path, preexec_fn=in_terminal, pass_fds=[theirs]) as child:
        os.close(theirs)
        os.close(ours)
        assert child.wait(20) == 130


def test_one_that_is_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    def as_nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with waiting_stage(tmp_path, preexec_fn=as_nohup) as child:
        assert not catches(child.pid, signal.SIGHUP)
        child.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)


def test_one_that_comes_while_a_module_is_imported_is_130(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Python 3.11 makes another error of it."""

    def command(**_: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error

    before = {number: signal.getsignal(number) for number in INTERRUPTIONS}
    try:
        with pytest.raises(SystemExit) as left:
            main(command)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert left.value.code == 130
    assert capsys.readouterr().err.startswith("interrupted")


GATE = ("gate", "--baseline", "http://127.0.0.1:9", "--candidate", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    "words",
    [
        ("model", "org/name", "--eval-data"),
        ("plan", "org/name", "--store"),
        ("verify",),
        ("verify", ".", "--public-key"),
        ("pull", "a@1"),
        ("serve", "a@1", "--weights"),
        ("report", "--output"),
        (*GATE, "--tokenizer"),
        (*GATE, "--tokenizer", ".", "--junit"),
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
@pytest.mark.parametrize(
    "path", ["a" * 300, "./" + "a" * 5000, "~no-such-user-here/x"], ids=["name", "path", "home"]
)
def test_a_path_that_no_file_can_have(words: tuple[str, ...], path: str) -> None:
    error = CliRunner().invoke(app, [*words, path]).exception
    assert isinstance(error, UsageError)
    assert "is not a path" in error.message


@pytest.mark.parametrize("words", ["--version", "show", "show --json"])
def test_output_that_a_full_disk_does_not_take_is_an_expected_error(words: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PREPARE, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == ExitCode.EXPECTED_ERROR
    assert "disk is full" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_help_is_as_wide_as_the_terminal() -> None:
    def longest(columns: int) -> int:
        code = "from pipeline.cli.main import main; main()"
        shown = subprocess.run(
            [sys.executable, "-c", code, "gate", "--help"],
            env={**os.environ, "COLUMNS": str(columns)},
            capture_output=True,
            text=True,
            check=True,
        )
        return max(map(len, shown.stdout.splitlines()))

    assert 70 < longest(80) <= 80
    assert 120 < longest(140) <= 140


def test_file_names_that_are_not_utf_8_are_refused() -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "prepare", "runs"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE
    assert "PYTHONUTF8=1" in done.stderr


@pytest.mark.parametrize("place", ["localhost:8000", "127.0.0.1:8000/v1", "[::1]:8000"])
def test_an_endpoint_without_its_scheme_is_no_run(place: str) -> None:
    with pytest.raises(UsageError) as caught:
        is_recorded(place)
    assert f"http://{place}" in (caught.value.hint or "")
    assert is_recorded("20261121-0915:fp8-dynamic")
    assert not is_recorded(f"http://{place}")
