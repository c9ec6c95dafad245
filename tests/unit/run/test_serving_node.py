"""Which node a run is laid out for, and that nothing of the driver's machine gets into it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from elsewhere import H100, Elsewhere
from listener import Listener
from some_node import NODE

from pipeline.core.resource_request import ResourceRequest
from pipeline.environments.settings import Settings
from pipeline.plan.resolved_options import ModelRequest, choose
from pipeline.run.serving_node import find_node
from recipes.catalog import load_profile


def request(profile: str) -> ModelRequest:
    return ModelRequest(
        checkpoint="demo:smollm2-135m",
        recipes=("fp8-dynamic",),
        profile=profile,
        policy=None,
        name=None,
        registry=None,
        eval_data=None,
        trust_remote_code=False,
    )


def test_auto_takes_the_nodes_gpu_not_the_drivers(tmp_path: Path) -> None:
    executor, heard = Elsewhere(H100), Listener()
    node = find_node(executor, "auto", tmp_path, heard)  # type: ignore[arg-type]
    assert executor.asked == [[ResourceRequest(gpus=1), ResourceRequest(cpus="all")]]
    assert any("gpu7" in note and "H100" in note for note in heard.notes)
    settings = Settings(home=tmp_path, store=tmp_path / "store")
    assert choose(request("auto"), settings, node).profile.name == "h100"


@pytest.mark.parametrize(
    ("parallel", "needs"),
    [
        (1, ResourceRequest(gpus=1)),
        (4, ResourceRequest(gpus=4)),
    ],
)
def test_a_named_profile_is_served_where_as_many_gpus_are(
    tmp_path: Path, parallel: int, needs: ResourceRequest
) -> None:
    keys = load_profile("h100").model_dump(mode="json", exclude_unset=True)
    keys["engine_arguments"] |= {"tensor-parallel-size": parallel}
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(keys))
    executor = Elsewhere(H100)
    find_node(executor, str(file), tmp_path, Listener())  # type: ignore[arg-type]
    assert executor.asked == [[needs]]


def test_this_machine_is_not_told_of(tmp_path: Path) -> None:
    heard = Listener()
    find_node(Elsewhere(NODE), "cpu", tmp_path, heard)  # type: ignore[arg-type]
    assert heard.notes == []
