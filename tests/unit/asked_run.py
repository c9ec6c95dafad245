"""What is asked of a run, before anything is done: requests, and what they name, written down.

The GPU's driver is a program on the PATH, so a test's PATH decides which GPU there is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from listener import Listener
from quantized_checkpoint import source_files
from small_checkpoint import write_files

from artifacts.requests import ModelRequest
from pipeline.environments.settings import Settings
from pipeline.plan.choice import Choice, choose
from pipeline.plan.locator import Locator
from prepare.errors import CheckpointError, UsageError
from prepare.hardware import NodeInfo
from prepare.stage import StageSpec
from recipes.catalog import RECIPES
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.reference import parse_reference
from recipes.policy import Policy
from recipes.schema import Recipe, ServingProfile


def request_for(checkpoint: str = "org/model", **options: Any) -> ModelRequest:
    defaults: dict[str, Any] = {
        "recipes": (),
        "profile": "auto",
        "policy": None,
        "name": None,
        "registry": None,
        "eval_data": None,
        "trust_remote_code": False,
    }
    return ModelRequest(checkpoint=checkpoint, **(defaults | options))


def choice_of(
    recipes: tuple[Recipe, ...],
    profile: ServingProfile,
    policy: Policy,
    node: NodeInfo,
    *,
    trust_remote_code: bool = False,
    remeasured: tuple[str, ...] = (),
    until: str | None = None,
) -> Choice:
    """Options that are resolved to these, without the catalog."""
    return Choice(
        asked=request_for(trust_remote_code=trust_remote_code, until=until),
        reference=parse_reference("org/model"),
        recipes=recipes,
        profile=profile,
        policy=policy,
        name="model",
        node=node,
        remeasured=remeasured,
    )


def refused(request: ModelRequest, settings: Settings) -> UsageError:
    with pytest.raises(UsageError) as caught:
        choose(request, settings)
    assert caught.value.where
    assert caught.value.hint
    return caught.value


def install_driver(programs: Path, gpu: str, capability: str) -> None:
    """A driver's program that answers for this GPU, as nvidia-smi does."""
    program = programs / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f'-L) echo "GPU 0: {gpu} (UUID: GPU-1)"; echo "GPU 1: {gpu} (UUID: GPU-2)";;\n'
        f'--query-gpu=*) echo "580.9, 1 MiB, {capability}"; echo "580.9, 1 MiB, {capability}";;\n'
        "*) exit 2;;\n"
        "esac\n"
    )
    program.chmod(0o755)


def write_policy(folder: Path, mmlu: dict[str, Any], speed: dict[str, Any] | None = None) -> str:
    path = folder / "policy.yaml"
    policy = {
        "name": "mine",
        "summary": "one suite",
        "suites": {"mmlu": {"kind": "mmlu", **mmlu}},
        **({"speed": speed} if speed else {}),
    }
    path.write_text(yaml.safe_dump(policy))
    return str(path)


def speculative_profile(folder: Path, **keys: Any) -> str:
    """A profile of one's own with speculative decoding."""
    data = yaml.safe_load((RECIPES / "profiles" / "cpu.yaml").read_text())
    file = folder / "mine.yaml"
    speculative = {"method": "ngram", "num_speculative_tokens": 4, **keys}
    file.write_text(yaml.safe_dump({**data, "speculative": speculative}))
    return str(file)


class Checkpoints:
    """Writes a checkpoint with a config of the test's, and looks for it as a run does."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.wide = folder.with_name("wide")  # of the stage that dequantizes
        self.made: list[StageSpec] = []
        self.settings = settings

    def write(self, **config: Any) -> None:
        files = source_files()
        changed = json.loads(files["config.json"]) | config
        write_files(self.folder, files | {"config.json": json.dumps(changed).encode()})

    def choices(self, checkpoint: str | None = None, **options: Any) -> Choice:
        return choose(request_for(checkpoint or str(self.folder), **options), self.settings)

    def located(self, choices: Choice) -> Checkpoint:
        trusts_code = choices.asked.trust_remote_code
        locator = Locator(
            choices.profile,
            self.settings,
            self.make,
            Listener(),
            choices.checkpoints,
            trusts_code,
        )
        return locator.source(choices)

    def make(self, spec: StageSpec) -> Path:
        self.made.append(spec)
        return self.folder if spec.stage == "demo_checkpoint" else self.wide

    def fault(self, **options: Any) -> CheckpointError:
        with pytest.raises(CheckpointError) as caught:
            self.located(self.choices(**options))
        assert str(self.folder) in caught.value.where
        assert caught.value.hint
        return caught.value


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", store=tmp_path / "store")


@pytest.fixture
def checkpoints(tmp_path: Path, settings: Settings) -> Checkpoints:
    return Checkpoints(tmp_path / "model", settings)
