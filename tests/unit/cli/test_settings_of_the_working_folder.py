"""A settings file in the working folder, which may be a downloaded checkpoint, is not obeyed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_checkpoint import checkpoint_files, write_files

PREPARE = (sys.executable, "-m", "prepare")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint whose folder also has settings that would run its author's program."""
    folder = write_files(tmp_path / "checkpoint", checkpoint_files())
    program = folder / "python"
    program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\nexit 1\n")
    program.chmod(0o755)
    names = ("quantize", "quantize-autoawq", "serve", "evaluate")
    overrides = "".join(f"  {name}: {{python: {program}}}\n" for name in names)
    text = f"home: {tmp_path}/theirs\nstore: {tmp_path}/theirs/store\nenvironments:\n{overrides}"
    (folder / "prepare.yaml").write_text(text)
    return folder


def call(checkpoint: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in the checkpoint's folder, as a user whose own settings build nothing."""
    home = checkpoint.parent
    users = home / "config" / "prepare" / "settings.yaml"
    users.parent.mkdir(parents=True, exist_ok=True)
    users.write_text("environments: {quantize: {python: /bin/false}, serve: {python: /bin/false}}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREPARE_")}
    return subprocess.run(
        [*PREPARE, *words],
        cwd=checkpoint,
        env=kept | {"PREPARE_HOME": str(home / "home"), "XDG_CONFIG_HOME": str(home / "config")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    ["plan .", "model . --profile cpu", "doctor", "plan --policy demo"],
)
def test_nothing_of_it_runs(checkpoint: Path, words: str) -> None:
    done = call(checkpoint, *words.split())
    assert done.returncode in (0, 1, 2), done.stderr
    assert not (checkpoint.parent / "ran").exists()
    assert not (checkpoint.parent / "theirs").exists()


def test_it_is_read_where_it_is_asked_for(checkpoint: Path) -> None:
    call(checkpoint, "--settings", "prepare.yaml", "doctor")
    assert (checkpoint.parent / "ran").exists()
