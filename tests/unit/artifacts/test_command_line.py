"""The command that a run's record gives back is the one that was typed; the record is untrusted."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_reports import COMMAND

from artifacts.command_line import RunKind, command_line
from pipeline.environments.settings import Settings
from pipeline.plan.resolved_options import ModelRequest, choose
from pipeline.run.gate import GateRequest
from pipeline.run.recheck import RecheckRequest
from pipeline.serving.openai_endpoint import OpenAIEndpoint
from prepare.errors import StoreError

POLICY = """name: strict
summary: s
suites: {mmlu: {kind: mmlu, margins: {int4: 0.02, fp8: 0.01}}}
"""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
WHOLE: dict[str, Any] = {
    **COMMAND,
    "requested": {"recipes": ["awq-w4a16"], "profile": "cpu", "policy": "demo"},
    "recheck": "",
    "remeasured": ["mmlu"],
    "attempted": ["a"],
    "weights": None,
}


def chosen(folder: Path, checkpoint: str, **options: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "recipes": (),
        "profile": "cpu",
        "policy": None,
        "name": None,
        "registry": None,
        "eval_data": None,
        "trust_remote_code": False,
    }
    here = Settings(home=folder / "home", store=folder / "store")
    return choose(ModelRequest(checkpoint=checkpoint, **(defaults | options)), here).to_dict()


@pytest.fixture
def policy(tmp_path: Path) -> str:
    file = tmp_path / "strict-policy.yaml"
    file.write_text(POLICY)
    return str(file)


def test_what_others_read_has_no_path_of_this_machine(tmp_path: Path, policy: str) -> None:
    model = tmp_path / "model"
    model.mkdir()
    command = chosen(
        tmp_path, str(model), recipes=("fp8-dynamic",), policy=policy, eval_data=tmp_path
    )
    assert command_line("model", command, public=True) == (
        "prepare model ./model --recipe fp8-dynamic --profile cpu --policy ./strict-policy.yaml "
        f"--name model --eval-data ./{tmp_path.name}"
    )


def test_where_and_whether_it_promotes(tmp_path: Path) -> None:
    asked = {"registry": "http://me:secret@mlflow:5000", "promote": False}
    command = chosen(tmp_path, "org/model", **asked)
    line = command_line("model", command)
    assert line.endswith(" --registry 'http://***@mlflow:5000' --no-promote")
    assert "--registry" not in command_line("model", command, public=True)


def test_a_recheck() -> None:
    asked = RecheckRequest("tiny@champion", profile="h200", source="./here").as_options()
    command = {
        **COMMAND,
        "recheck": "tiny@1",
        "registry": None,
        "trust_remote_code": True,
        "promote": False,
        "force": True,
        "requested": asked,
    }
    assert command_line("recheck", command) == (
        "prepare recheck tiny@1 --profile h200 --source ./here --trust-remote-code --force"
    )
    one_gate = {**command, "force": False, "remeasured": ["code", "speed.ratio.chat"]}
    assert " --remeasure code --remeasure speed.ratio.chat " in command_line("recheck", one_gate)


@pytest.mark.parametrize("checkpoint", ["org/model@v1", "demo:smollm2-135m"])
def test_names_that_are_no_paths_stay(tmp_path: Path, checkpoint: str) -> None:
    command = chosen(tmp_path, checkpoint, trust_remote_code=True)
    line = command_line("model", command, public=True)
    assert line.startswith(f"prepare model {checkpoint} --recipe fp8-dynamic --recipe awq-w4a16 ")
    assert line.endswith(" --trust-remote-code")
    assert line == command_line("model", command)


def test_of_two_endpoints() -> None:
    request = GateRequest(
        baseline=OpenAIEndpoint.from_url("http://me:secret@a:1/v1", None),
        candidate=OpenAIEndpoint.from_url("http://b:2", "mine"),
        policy="default",
        family="int4",
        tokenizer=Path("/models/tokenizer"),
        max_length=2048,
        eval_data=None,
        deployment_id="s",
    )
    assert command_line("gate", request.to_dict()) == (
        "prepare gate --baseline 'http://***@a:1' --candidate http://b:2 --candidate-model mine "
        "--tokenizer /models/tokenizer --policy default --family int4 --max-length 2048 "
        "--deployment-id s"
    )


@settings(max_examples=300, deadline=None)
@given(
    path=st.sampled_from([(k,) for k in WHOLE] + [("requested", k) for k in WHOLE["requested"]]),
    value=JSON,
    kind=st.sampled_from(["model", "gate", "recheck"]),
    public=st.booleans(),
)
def test_a_strangers_command_raises_nothing_but_our_error(
    path: tuple[str, ...], value: Any, kind: RunKind, public: bool
) -> None:
    command = copy.deepcopy(WHOLE)
    place = command
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with contextlib.suppress(StoreError):
        command_line(kind, command, public=public)


def test_a_private_folder_with_an_equals_sign_is_not_public() -> None:
    folder = "/secret/date=2026-01-01/llama"
    command = {**COMMAND, "checkpoint": folder, "eval_data": f"{folder}/questions"}
    line = command_line("model", command, public=True)
    assert "secret" not in line
    assert "./llama" in line
