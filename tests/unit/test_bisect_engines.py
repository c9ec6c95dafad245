"""scripts/bisect_engines.py, with a `prepare` that knows which engine is bad."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from free_port import free_port

SCRIPT = Path(__file__).parents[2] / "scripts" / "bisect_engines.py"
PREPARE = """#!/bin/sh
# The version is what the engine serves.
version=$(cat {served})
echo "$version" >> {asked}
case $version in {bad}) exit 4 ;; {odd}) exit 5 ;; *) exit 0 ;; esac
"""
ENGINE = """#!/bin/sh
case ${{1-none}} in crashes) exit 3 ;; esac
echo "${{1-none}}" > {served}
mkdir -p {served}.d/v1 && echo '{{}}' > {served}.d/v1/models
exec {python} -m http.server --bind 127.0.0.1 --directory {served}.d {port}
"""


class Bisection:
    """A folder with an engine and a command `prepare`.

    Args:
        folder: of both.
        bad: versions that fail, as a pattern of the shell.
        odd: versions that are undecided.
    """

    def __init__(self, folder: Path, bad: str, odd: str = "-") -> None:
        self.folder = folder
        self.port = free_port()
        self.asked = folder / "asked"
        known = {"served": folder / "served", "asked": self.asked, "python": sys.executable}
        for name, text in (("prepare", PREPARE), ("engine", ENGINE)):
            file = folder / name
            file.write_text(text.format(**known, bad=bad, odd=odd, port=self.port))
            file.chmod(0o755)

    def run(self, *versions: str) -> subprocess.CompletedProcess[str]:
        """Bisect."""
        url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, str(SCRIPT), "m@champion", url, str(self.folder / "engine")]
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [*command, *versions],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


@pytest.mark.parametrize(
    ("versions", "bad", "first"),
    [
        (("1", "2", "3"), "2|3", "2"),
        (("1", "2", "3"), "1|2|3", "1"),
        (("1", "2"), "-", "none"),
        (("1", "crashes", "3"), "3", "3"),
    ],
)
def test_the_first_bad_version(
    tmp_path: Path, versions: tuple[str, ...], bad: str, first: str
) -> None:
    done = Bisection(tmp_path, bad).run(*versions)
    assert done.stdout.splitlines()[-1] == f"first bad: {first}", done.stderr
    if "crashes" in versions:
        assert "crashes: skipped" in done.stdout


def test_each_version_is_started_once(tmp_path: Path) -> None:
    bisection = Bisection(tmp_path, "4", odd="3")
    done = bisection.run("1", "2", "3", "4")
    asked = bisection.asked.read_text().split()
    assert len(asked) == len(set(asked))
    assert "3: skipped" in done.stdout
    assert done.stdout.splitlines()[-1] == "first bad: 4"


@pytest.mark.parametrize(
    ("bad", "odd", "code"), [("-", "-", 0), ("none", "-", 1), ("-", "none", 125)]
)
def test_a_step_of_git_bisect(tmp_path: Path, bad: str, odd: str, code: int) -> None:
    assert Bisection(tmp_path, bad, odd).run().returncode == code


def test_a_server_that_is_there_already_is_not_judged(tmp_path: Path) -> None:
    """Every engine would be as good as that one."""
    bisection = Bisection(tmp_path, bad="3")
    folder = tmp_path / "other" / "v1"
    folder.mkdir(parents=True)
    (folder / "models").write_text("{}")
    words = ["--bind", "127.0.0.1", "--directory", str(folder.parent), str(bisection.port)]
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()  # it serves
        done = bisection.run("1", "2", "3")
        server.terminate()
    assert done.returncode == 128, done.stderr
    assert not bisection.asked.exists()
