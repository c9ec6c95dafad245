"""On the node that runs it a stage gets an interpreter that is there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from loose_stage import stage_spec

from pipeline.core.errors import EnvironmentBuildError
from pipeline.core.events import NullProgress
from pipeline.core.stage_record import StageSpec
from pipeline.stages.stage_interpreter import with_interpreter


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's own settings name an interpreter that lacks the environment's modules."""
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"environments: {{quantize: {{python: {sys.executable}}}}}")
    monkeypatch.setenv("PREPARE_SETTINGS", str(settings))


def spec(**runtime: str) -> StageSpec:
    return stage_spec("questions", "v", {}, {}, runtime, Path("/store"))


def test_what_is_here_is_taken() -> None:
    asked = spec(environment="quantize", accelerator="cpu", python=sys.executable)
    assert with_interpreter(asked, NullProgress()) == asked


def test_a_stage_without_an_environment_needs_none() -> None:
    assert with_interpreter(spec(), NullProgress()) == spec()


@pytest.mark.parametrize("python", ["", "/of/another/machine/python"])
def test_what_is_not_here_is_asked_of_the_node(python: str) -> None:
    asked = spec(environment="quantize", accelerator="cpu", python=python)
    with pytest.raises(EnvironmentBuildError, match="llmcompressor"):
        with_interpreter(asked, NullProgress())


def test_another_environment_than_the_key_s_makes_nothing() -> None:
    runtime = {"environment": "quantize", "accelerator": "cpu"}
    asked = spec(**runtime).model_copy(update={"parameters": {"environment": "of the driver"}})
    with pytest.raises(EnvironmentBuildError, match="differs from the planned"):
        with_interpreter(asked, NullProgress())
