"""Answers on record against real servers.

The same engine, one that computes otherwise, and one with another chat template.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from port_server import EXACT, served
from prepare_command import prepare

from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.server import Server
from recipes.schema import ServingProfile

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]

POLICY = """
name: watched
summary: questions and conversations
suites:
  quiz: {kind: mmlu, prompt_format: cloze, num_fewshot: 0, sources: [builtin], margins: {fp8: 0.15}}
  chats: {kind: fidelity, sources: [builtin], questions: 64, margins: {fp8: 0.2}}
"""
OTHER_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}answer:"


class Watch:
    """A store with a record, and what a command says of an endpoint."""

    def __init__(self, store: Path, tokenizer: Path) -> None:
        self.store = store
        self.tokenizer = tokenizer
        self.record = ""

    def gate(self, candidate: str, baseline: str = "", *more: str) -> tuple[int, dict[str, Any]]:
        found = prepare(
            self.store,
            "gate",
            *("--baseline", baseline or self.record, "--candidate", candidate),
            *("--candidate-model", SERVED_NAME, "--tokenizer", str(self.tokenizer)),
            *("--json", *more),
        )
        return found.returncode, json.loads(found.stdout)


@pytest.fixture(scope="module")
def watch(server: Server, demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Watch:
    store = tmp_path_factory.mktemp("watched")
    (store / "policy.yaml").write_text(POLICY)
    found = Watch(store, demo_model)
    options = ("--policy", str(store / "policy.yaml"), "--baseline-model", SERVED_NAME)
    code, report = found.gate(server.url, f"{server.url}/v1", *options)
    assert code == 0, report
    found.record = f"{report['run']}:baseline"
    return found


def test_the_same_engine_passes(watch: Watch, server: Server) -> None:
    code, report = watch.gate(server.url)
    assert code == 0, report
    assert [gate["name"] for gate in report["variants"][0]["gates"]] == ["quiz", "chats"]
    assert any("candidate: vLLM 0." in note for note in report["notes"])
    assert prepare(watch.store, "verify", report["run"]).returncode == 0


def test_an_engine_that_computes_otherwise_fails(
    watch: Watch, demo_model: Path, cpu_profile: ServingProfile, tmp_path: Path
) -> None:
    changes = {**EXACT, "hf-overrides": json.dumps({"rms_norm_eps": 0.3})}
    with served(demo_model, cpu_profile, tmp_path / "log", changes=changes) as other:
        code, report = watch.gate(other.url)
    assert code == 4, report


def test_another_chat_template_is_refused_before_any_question(
    watch: Watch, demo_model: Path, cpu_profile: ServingProfile, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(demo_model, tmp_path / "other"))
    config = folder / "tokenizer_config.json"
    config.write_text(
        json.dumps({**json.loads(config.read_text()), "chat_template": OTHER_TEMPLATE})
    )
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    with served(folder, cpu_profile, tmp_path / "log") as other:
        began = time.monotonic()
        code, report = watch.gate(other.url)
        seconds = time.monotonic() - began
    assert code == 1
    assert "the first token that differs is number" in report["error"]["message"]
    assert {stage["stage"] for stage in report["stages"]} <= {"questions", "recorded", "recall"}
    print(f"refused after {seconds:.0f} s")
