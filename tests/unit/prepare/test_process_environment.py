from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stages.context import StageContext
from prepare.events import NullProgress
from prepare.process_environment import (
    NetworkAccess,
    registry_variables,
    server_environment,
    without_registry,
)
from prepare.stage import StageSpec
from prepare.store import Store

SECRETS = {
    name: f"secret-{name}"
    for name in (
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "GITHUB_TOKEN"),
        *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY"),
        *("PREPARE_KEY_PASSWORD", "ORAS_PASS", "SSH_AUTH_SOCK", "WANDB_API_KEY"),
    )
}
SHELL = {
    **SECRETS,
    "PATH": "/bin",
    "HOME": "/home/me",
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "CUDA_VISIBLE_DEVICES": "1",
    "LD_PRELOAD": "/tmp/x.so",
    "OMP_TOOL_LIBRARIES": "/tmp/x.so",
    "PYTHONPATH": "/ours",
    "VLLM_USE_V1": "0",
    "TORCH_LOGS": "all",
    "HTTPS_PROXY": "http://me:password@proxy:3128",
    "NO_PROXY": "intranet",
    "PREPARE_STORE": "/store",
}
KEPT = {
    "HOME": "/home/me",
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "2",
    "CUDA_VISIBLE_DEVICES": "1",
}


def secrets_in(environment: dict[str, str]) -> set[str]:
    return {name for name in SECRETS if name in environment}


def test_a_server_gets_what_is_listed_and_its_own() -> None:
    given_to_it = server_environment(
        SHELL, {"VLLM_CPU_KVCACHE_SPACE": "1"}, python=Path("/env/bin/python")
    )
    assert given_to_it == {
        **KEPT,
        "PATH": "/env/bin:/bin",
        "NO_PROXY": "intranet,127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONSAFEPATH": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    assert server_environment(SHELL, {"HF_HUB_OFFLINE": "0"})["HF_HUB_OFFLINE"] == "0"


@pytest.mark.parametrize(
    ("need", "secrets"),
    [
        (NetworkAccess.HUB, {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}),
        (NetworkAccess.ENDPOINT, {"OPENAI_API_KEY"}),
    ],
)
def test_who_must_show_a_credential_gets_that_one(need: NetworkAccess, secrets: set[str]) -> None:
    environment = server_environment(SHELL, {}, needs=[need])
    assert secrets_in(environment) == secrets
    assert environment["HTTPS_PROXY"] == SHELL["HTTPS_PROXY"]
    assert ("HF_HUB_OFFLINE" in environment) == (need != NetworkAccess.HUB)


def test_a_copy_that_promotes_nothing_has_no_credential_of_the_registry() -> None:
    environment = without_registry(SHELL)
    assert not secrets_in(environment) & {
        *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "PREPARE_KEY_PASSWORD")
    }
    assert environment["PREPARE_STORE"] == "/store"
    assert environment["HF_TOKEN"] == SHELL["HF_TOKEN"]
    assert SHELL.keys() - environment.keys() == {*registry_variables(SHELL)}


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=20))
def test_what_nobody_listed_is_not_inherited(shell: dict[str, str]) -> None:
    strays = {f"STRAY_{name}": value for name, value in shell.items()}
    assert server_environment(strays, {}) == server_environment({}, {})


def test_a_workers_process_has_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process in a worker's place: what it finds in its environment is what it was given."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nenv > "$4.environment"\n')
    python.chmod(0o755)
    store = Store(tmp_path / "store")
    spec = StageSpec(
        stage="speed",
        variant="v",
        key="k",
        parameters={},
        inputs={},
        runtime={"python": str(python)},
        store=str(store.root),
    )
    context = StageContext(spec, tmp_path, store, NullProgress())
    with pytest.raises(Exception, match="no result"):
        context.run_worker("eval_gates.speed.speed_worker", {})
    (found,) = tmp_path.glob("*.environment")
    names = {line.partition("=")[0] for line in found.read_text().splitlines()}
    assert "PATH" in names
    assert not names & SECRETS.keys()
    assert os.environ.keys() >= SECRETS.keys()
