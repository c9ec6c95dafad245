"""Running uv: what it is told, what its failures say, that it dies with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tiny_environment import Heard, TinySource

from pipeline.core.errors import EnvironmentBuildError
from pipeline.environments.build import InstallProgress
from pipeline.environments.installer import find_uv, hint_for, installer_variables, run_uv


def test_uv_is_found() -> None:
    said = subprocess.run([find_uv(), "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("uv ")


def test_strays_are_kept_from_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "UV_OVERRIDE"):
        monkeypatch.setenv(name, "/stray")
    monkeypatch.setenv("UV_FIND_LINKS", "/mine")
    variables = installer_variables()
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "UV_OVERRIDE"} & variables.keys()
    assert variables["UV_FIND_LINKS"] == "/mine"
    assert variables["PATH"] == os.environ["PATH"]


def test_failure_quotes_uv_and_names_a_hint(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentBuildError) as caught:
        run_uv(
            ["venv", "--python", "/nowhere/python", str(tmp_path / "e")],
            folder=tmp_path,
            variables=dict(os.environ),
        )
    assert "/nowhere/python" in caught.value.message
    assert " venv --python /nowhere/python" in caught.value.where
    assert caught.value.hint


def test_lines_are_heard(tmp_path: Path) -> None:
    lines: list[str] = []
    run_uv(["--version"], folder=tmp_path, variables=dict(os.environ), on_line=lines.append)
    assert len(lines) == 1
    assert lines[0].startswith("uv ")


# uv's own words, as uv 0.13 says them.
@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            "error: Failed to install: numpy-2.4.6.whl (numpy==2.4.6)\n"
            "  cause: failed to copy file: No space left on device (os error 28)",
            "free some disk",
        ),
        (
            "error: Failed to fetch: http://mirror/simple/scipy/\n"
            "  cause: error sending request\n  cause: client error (Connect)\n"
            "  cause: Connection refused (os error 111)",
            "check the network",
        ),
        (
            "error: Failed to fetch: http://mirror/simple/scipy/\n  cause: dns error\n"
            "  cause: failed to lookup address information: Name or service not known",
            "check the network",
        ),
        (
            "error: Failed to fetch: https://mirror/simple/scipy/\n"
            "  cause: invalid peer certificate: UnknownIssuer",
            "certificate",
        ),
        (
            "error: No solution found when resolving dependencies\n"
            "  cause: Because pandas==2.2.0 has no usable wheels and you require pandas==2.2.0",
            "Python 3.11",
        ),
        (
            "error: No solution found when resolving dependencies\n"
            "  cause: Because there is no version of pandas==99 and you require pandas==99",
            "lacks a locked version",
        ),
        (
            "error: No solution found when resolving dependencies\n"
            "  cause: Because x was not found in the package registry and you require x==1",
            "lacks a locked version",
        ),
        ("error: failed to create directory: Permission denied (os error 13)", "writable folder"),
        ("error: something new", "doctor"),
    ],
)
def test_cures(said: str, hint: str) -> None:
    assert hint in hint_for(said)


def test_uv_dies_with_a_killed_parent(tmp_path: Path) -> None:
    """`uv run` waits for a program here, as an install would for the network."""
    script = textwrap.dedent(
        f"""
        import os
        from pathlib import Path
        from pipeline.environments.installer import run_uv
        run_uv(
            ["run", "--no-project", "--offline", "--python", {sys.executable!r}, "python", "-c",
             "import os, time; print(os.getppid(), flush=True); time.sleep(60)"],
            folder=Path({str(tmp_path)!r}), variables=dict(os.environ),
            on_line=lambda line: print(line, flush=True),
        )
        """
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    uv = int(parent.stdout.readline())
    try:
        assert Path(f"/proc/{uv}/exe").resolve().name == "uv"
        parent.kill()
        parent.wait()
        for _ in range(100):
            if not _runs(uv):
                break
            time.sleep(0.05)
        assert not _runs(uv)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_progress_of_downloads_and_packages(tiny: TinySource, tmp_path: Path, heard: Heard) -> None:
    watcher = InstallProgress(tiny.definition, tmp_path / "environment", heard)
    watcher.report()
    assert heard.events == []
    for line in ("Downloading torch (1.5GiB)", "Downloading numpy (16.1MiB)", "Downloaded numpy"):
        watcher.read_line(line)
    watcher.report()
    watcher.read_line("Downloaded torch")
    watcher.report()
    information = tmp_path / "environment/lib/python3.11/site-packages/tiny_thing-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").touch()
    watcher.report()
    watcher.report()
    assert heard.events == [
        ("download serve-cpu", 16, 1552, "MiB"),
        ("install serve-cpu", 1, 1, "packages"),
    ]
