"""Broken models that short questions take for sound: conversations find each, and no sound one."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged_weights import change_weights, double_projection
from port_server import served
from prepare_command import prepare

from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.server import Server
from recipes.schema import ServingProfile

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(1800)]

PLUGIN = Path(__file__).parent / "few_kv_bits"
LOG = Path(__file__).parents[2] / "eval_gates" / "data" / "summaries.jsonl"
ROWS = 200
POLICY = """
name: conversations
summary: conversations alone
suites:
  quiz:
    {kind: mmlu, prompt_format: cloze, num_fewshot: 0, sources: [builtin], tier: supporting,
     margins: {int4: 0.2}}
  traffic:
    {kind: fidelity, prompt_format: chat, data: LOG, max_tokens: 24, questions: 200,
     scored_tokens: 512, margins: {int4: 0.08}, at_depth: 128}
"""
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}


def conversations() -> list[dict[str, Any]]:
    """A log in OpenAI's form: tools, unicode, empty turns, and texts beyond the context."""
    texts = [json.loads(line)["document"] for line in LOG.read_text().splitlines()]
    rows = []
    for number in range(ROWS):
        text = texts[number % len(texts)]
        asked = {"role": "user", "content": f"{number}. {text[: 200 + 3 * number]} Sum up."}
        row: dict[str, Any] = {"id": str(number), "messages": [asked]}
        if number % 10 == 1:
            row["tools"] = [WEATHER]
        elif number % 10 == 2:
            asked["content"] = f"«{number}» Übersetze: 你好 мир 🌍🏽 … {text[:300]}"
        elif number % 10 == 3:
            empty = [{"role": "assistant", "content": ""}, {"role": "user", "content": "Go on."}]
            row["messages"] += empty
        elif number % 50 == 4:
            asked["content"] = " ".join(texts[:40])
        elif number % 10 == 5:
            row = {"id": str(number), "prompt": text[:400]}
        rows.append(row)
    return rows


def four_bits(folder: Path, model: Path) -> dict[str, str]:
    """A KV cache of four bits, by a plugin of the engine."""
    about = folder / "few_kv_bits-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: few-kv-bits\nVersion: 1\n")
    plugin = "[vllm.general_plugins]\nfew_kv_bits = few_kv_bits:register\n"
    (about / "entry_points.txt").write_text(plugin)
    return {"PYTHONPATH": f"{folder}:{PLUGIN}", "FEW_KV_BITS": "4"}


def another_revision(folder: Path, model: Path) -> dict[str, str]:
    """Every weight a tenth of its deviation away, as by further training."""
    drawn = np.random.default_rng(0)
    change_weights(model, lambda _, was: was + drawn.normal(0, 0.1 * was.std(), was.shape))
    return {}


def doubled_scale(folder: Path, model: Path) -> dict[str, str]:
    """One projection is twice as large, as by a scale that is applied twice."""
    double_projection(model)
    return {}


def another_template(folder: Path, model: Path) -> dict[str, str]:
    """The chat template says one word more."""
    config = model / "tokenizer_config.json"
    found, file = json.loads(config.read_text()), model / "chat_template.jinja"
    template = file.read_text() if file.exists() else found["chat_template"]
    file.write_text("Hello. " + template)
    config.write_text(json.dumps({k: v for k, v in found.items() if k != "chat_template"}))
    return {}


def another_tokenizer(folder: Path, model: Path) -> dict[str, str]:
    """Two words have changed places."""
    file = model / "tokenizer.json"
    found = json.loads(file.read_text())
    words = found["model"]["vocab"]
    words["Ġthe"], words["Ġa"] = words["Ġa"], words["Ġthe"]
    file.write_text(json.dumps(found))
    return {}


@pytest.fixture(scope="module")
def gate(server: Server, demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Gate a server against the sound one."""
    root = tmp_path_factory.mktemp("gate")
    log, policy = root / "log.jsonl", root / "policy.yaml"
    log.write_text("".join(json.dumps(row) + "\n" for row in conversations()))
    policy.write_text(POLICY.replace("LOG", str(log)))

    def run(candidate: Server) -> Any:
        started = time.monotonic()
        done = prepare(
            root / "store",
            "gate",
            *("--baseline", server.url, "--baseline-model", SERVED_NAME),
            *("--candidate", candidate.url, "--candidate-model", SERVED_NAME),
            *("--tokenizer", str(demo_model), "--policy", str(policy)),
            # The baseline's answers are asked once for all tests: these are minutes each time.
            *("--deployment-id", "sound", "--family", "int4", "--json"),
        )
        print(f"exit {done.returncode} after {time.monotonic() - started:.0f} s")
        return done

    return run


def test_the_same_model_passes(gate: Any, server: Server) -> None:
    done = gate(server)
    assert done.returncode == 0, done.stderr
    (variant,) = json.loads(done.stdout)["variants"]
    found = {each["name"]: each for each in variant["gates"]}
    assert found["traffic"]["verdict"] == "pass"
    assert found["traffic"]["n"] >= ROWS // 4 - 2  # the first look
    deep = found["traffic beyond 128 tokens"]
    assert deep["verdict"] == "pass"
    by_depth = found["traffic"]["depths"]
    assert sum(row["n"] for row in by_depth) == found["traffic"]["n"]


@pytest.mark.parametrize("broken", [four_bits, another_revision, doubled_scale])
def test_what_answers_short_questions_as_before_loses_conversations(
    broken: Any, gate: Any, demo_model: Path, cpu_profile: ServingProfile, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(demo_model, model)
    variables = broken(tmp_path, model)
    with served(model, cpu_profile, tmp_path / "server.log", variables) as candidate:
        done = gate(candidate)
    assert done.returncode == 4, done.stderr
    (variant,) = json.loads(done.stdout)["variants"]
    found = {each["name"]: each for each in variant["gates"]}
    print({name: (each["estimate"], each["n"], each["verdict"]) for name, each in found.items()})
    assert found["traffic"]["verdict"] == "fail"
    assert found["traffic beyond 128 tokens"]["verdict"] == "fail"
    if broken is four_bits:  # what the short quiz does not see
        assert found["quiz"]["verdict"] == "pass"


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (another_template, "renders the conversation"),
        (another_tokenizer, "give --tokenizer the tokenizer that the endpoint serves"),
    ],
)
def test_what_reads_another_text_is_refused_before_a_score(
    broken: Any,
    words: str,
    gate: Any,
    demo_model: Path,
    cpu_profile: ServingProfile,
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    shutil.copytree(demo_model, model)
    broken(tmp_path, model)
    with served(model, cpu_profile, tmp_path / "server.log") as candidate:
        done = gate(candidate)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert words in done.stderr
