"""What `prepare stage run` refuses to do on whatever node it is started."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
import typer

from pipeline import __version__
from pipeline.cli import stage


@pytest.mark.parametrize("kind", ["judge", "sitting"])
def test_work_of_another_version_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    task = tmp_path / "task.json"
    task.write_text(json.dumps({"prepare": "99.1", "stage": kind, "a key of that version": 1}))
    with pytest.raises(typer.Exit):
        stage.run(task)
    error = json.loads(capfd.readouterr().out)
    assert error["kind"] == "StageError"
    assert "99.1" in error["what"]
    assert __version__ in error["what"]
    assert platform.node() in error["where"]
