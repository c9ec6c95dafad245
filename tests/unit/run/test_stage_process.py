"""What `prepare task run` refuses to do on any node."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
import typer

from pipeline import __version__
from pipeline.cli import task
from pipeline.core.installation import this_prepare
from pipeline.core.process_environment import forwarded_environment, stage_environment
from pipeline.environments.definition import Accelerator
from pipeline.run.executors.stage_process import needs_of, refuse_other, stage_in
from pipeline.run.serving_task import ServingTask
from pipeline.serving.serving_spec import ExternalEndpoint, ServingSpec


@pytest.mark.parametrize("kind", ["judge", "serving_task"])
@pytest.mark.parametrize("theirs", ["99.1", f"{__version__}+code.0123456789ab"])
def test_work_of_another_prepare_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, theirs: str
) -> None:
    file = tmp_path / "task.json"
    file.write_text(json.dumps({"prepare": theirs, "stage": kind, "a key of that version": 1}))
    with pytest.raises(typer.Exit):
        task.run(file)
    error = json.loads(capfd.readouterr().out)
    assert error["kind"] == "StageError"
    assert theirs in error["message"]
    assert this_prepare() in error["message"]
    assert platform.node() in error["where"]


@pytest.mark.parametrize("others_serve", [False, True])
def test_only_work_that_asks_an_endpoint_of_others_has_its_key(
    tmp_path: Path, *, others_serve: bool
) -> None:
    endpoint = ExternalEndpoint(url="http://x", model="m") if others_serve else None
    model = ServingSpec(
        name="a", folder="/f", arguments=None, ready_timeout_seconds=1, endpoint=endpoint
    )
    item = ServingTask(
        store=str(tmp_path),
        accelerator=Accelerator.CPU,
        folder=str(tmp_path),
        model=model,
        baseline=model,
        specs=[],
    )
    file = tmp_path / "task.json"
    file.write_text(item.model_dump_json())
    shell = {"OPENAI_API_KEY": "key"}
    for given in (
        stage_environment(shell, stage_in(file), needs_of(file)),
        forwarded_environment(shell, stage_in(file), needs_of(file)),
    ):
        assert ("OPENAI_API_KEY" in given) == others_serve


def test_our_own_work_is_not_refused() -> None:
    for ours in ("", __version__, this_prepare()):
        refuse_other(ours)
