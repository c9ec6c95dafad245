"""A gate that asks about images: a tiny vision-language model, quantized, served and judged.

Its answers are random, so the gate decides nothing. What is looked at is that images reach the
model: the question's text is always the same, and the answers differ.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from prepare_command import prepare

from pipeline.core.events import NullProgress
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.data_sources import BUILTIN_CALIBRATION

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]

SCRIPT = Path(__file__).parent / "tiny_models.py"
QUESTIONS = 24
POLICY = {
    "name": "digits",
    "summary": "one suite",
    "suites": {
        "digits": {
            "kind": "images",
            "questions": QUESTIONS,
            "batch": QUESTIONS,
            "about": "benchmark",
            "margins": {"fp8": 0.3},
        }
    },
}
PROFILE = {
    "name": "short",
    "summary": "the models take 512 tokens",
    "extends": "cpu",
    "engine_arguments": {"max-model-len": 512},
}


def test_images_reach_both_models(tmp_path: Path) -> None:
    models, policy, store = tmp_path / "models", tmp_path / "policy.yaml", tmp_path / "store"
    profile = tmp_path / "profile.yaml"
    profile.write_text(yaml.safe_dump(PROFILE))
    python = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress()).python
    make = [str(python), str(SCRIPT), "make", str(models), str(BUILTIN_CALIBRATION)]
    subprocess.run(make, check=True, capture_output=True, timeout=300)
    policy.write_text(yaml.safe_dump(POLICY))
    asked = ["--recipe", "fp8-dynamic", "--profile", str(profile), "--policy", str(policy)]
    asked.append("--no-promote")

    refused = prepare(store, "model", str(models / "llama"), *asked)
    assert refused.returncode == 2
    assert "suites.digits" in refused.stderr
    assert "no vision tower" in refused.stderr

    done = prepare(store, "model", str(models / "qwen2_5_vl"), *asked)
    assert done.returncode == 5, done.stderr[-3000:]
    assert "insensitive" in done.stderr  # nothing is right, so nothing can be lost
    logs = list((store / "stages" / "evaluate").glob("*/answers.jsonl"))
    assert len(logs) == 2, done.stdout[-2000:] + done.stderr[-2000:]
    for log in logs:
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        assert len(rows) == QUESTIONS
        # A random model may write the same about all: test_recipes.py shows that images count.
        assert len({row["prompt_sha256"] for row in rows}) == QUESTIONS
