"""`prepare tune`: what it is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from prepare.errors import UsageError


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["tune", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--candidates", "nope"), "--candidates nope"),
        (("--workload", "nope"), "--workload nope"),
        (("--workload", "Chat"), "--workload Chat"),
        (("--workload", ".."), "--workload .."),
        (("--profile", "nope"), "--profile nope"),
        (("--profile", "h100"), "--profile h100"),  # without a GPU
    ],
)
def test_what_is_not_there_is_refused_at_once(
    words: tuple[str, str], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prepare.hardware.visible_gpus", lambda _: [])
    with pytest.raises(UsageError) as error:
        run("demo:smollm2-135m", *words)
    assert error.value.where == where


@pytest.mark.parametrize("name", [".", "missing/tuned.yaml", "fifo", "link"])
def test_where_no_profile_can_be_written_is_refused_before_the_race(
    tmp_path: Path, name: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(UsageError) as error:
        run("demo:smollm2-135m", "--profile", "nope", "--output", str(tmp_path / name))
    assert error.value.where == f"--output {tmp_path / name}"


def test_a_candidate_that_the_engine_does_not_take_is_named_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nsummary: s\ncandidates: {a: {engine_arguments: {host: x}}}\n")
    with pytest.raises(UsageError) as error:
        run("demo:smollm2-135m", "--profile", "cpu", "--candidates", str(file))
    assert error.value.where == f"--candidates {file}, key candidates.a"
