"""What `prepare stage run` refuses to do on whatever node it is started."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
import typer

from pipeline import __version__
from pipeline.cli import stage
from pipeline.core.installation import this_prepare
from pipeline.run.executors.stage_process import refuse_other


@pytest.mark.parametrize("kind", ["judge", "sitting"])
@pytest.mark.parametrize("theirs", ["99.1", f"{__version__}+code.0123456789ab"])
def test_work_of_another_prepare_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, theirs: str
) -> None:
    task = tmp_path / "task.json"
    task.write_text(json.dumps({"prepare": theirs, "stage": kind, "a key of that version": 1}))
    with pytest.raises(typer.Exit):
        stage.run(task)
    error = json.loads(capfd.readouterr().out)
    assert error["kind"] == "StageError"
    assert theirs in error["what"]
    assert this_prepare() in error["what"]
    assert platform.node() in error["where"]


def test_our_own_work_is_not_refused() -> None:
    for ours in ("", __version__, this_prepare()):
        refuse_other(ours)
