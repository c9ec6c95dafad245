"""Variants that other programs made of the demo model: promoted, or refused by name.

llm-compressor is called by hand, as its documentation shows; nothing of this project takes part.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quiz_policy import quiz_policy

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from prepare.hardware import cpu_features
from recipes.accelerator import Accelerator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]

BY_HAND = """
import sys
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM, AutoTokenizer

source, output = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
tokenizer = AutoTokenizer.from_pretrained(source)
recipe = QuantizationModifier(targets="Linear", scheme="FP8_DYNAMIC", ignore=["lm_head"])
oneshot(model=model, recipe=recipe)
model.save_pretrained(output, save_compressed=True)
tokenizer.save_pretrained(output)
"""
LAYER = "model.layers.7.mlp.down_proj"
HEADER = 8  # bytes of its length


@pytest.fixture(scope="module")
def vendor(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model in FP8, by llm-compressor."""
    folder = tmp_path_factory.mktemp("vendor") / "Demo-FP8"
    python = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress()).python
    command = [str(python), "-c", BY_HAND, str(demo_model), str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return folder


def prepare(store: Path, *words: str) -> tuple[int, Any, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "prepare", *words, "--json"],
        env={**os.environ, "PREPARE_STORE": str(store)},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def test_sound_ones_are_promoted_and_broken_ones_are_not(
    demo_model: Path, vendor: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    options = ["--profile", "cpu", "--policy", quiz_policy(tmp_path), "--name", "demo"]

    def model(*words: str) -> tuple[int, Any, str]:
        return prepare(store, "model", str(demo_model), *options, *words)

    # vLLM has no FP8 KV cache on a CPU without AVX-512.
    kind = "fp8" if "avx512f" in cpu_features() else "auto"
    served = ["--served-variant", f"cache=--kv-cache-dtype {kind} --max-num-seqs 16"]
    code, report, errors = model("--variant", str(vendor), *served)
    assert code == 0, errors[-4000:]
    verdicts = {each["recipe"]: each["verdict"] for each in report["variants"]}
    assert verdicts == {"demo-fp8": "pass", "cache": "pass"}
    assert prepare(store, "verify", "latest")[1]["same"]
    _, shown, _ = prepare(store, "registry", "demo")
    champion = json.dumps(shown)
    assert "Demo-FP8" in champion
    assert "prepare.made_by" in champion

    for broken, words, expected in (
        (doubled_scales(vendor, tmp_path / "a"), f"'{LAYER}' have an SQNR", 1),
        (swapped_tokenizer(vendor, tmp_path / "b"), "tokenizer is not the source's", 2),
        (other_revision(vendor, tmp_path / "c"), "under the floor", 1),
        (missing_shard(vendor, tmp_path / "d"), "weight files are missing", 2),
        (wrong_config(vendor, tmp_path / "e"), "vLLM would load both", 2),
    ):
        code, report, errors = model("--variant", f"broken={broken}", "--no-promote")
        assert code == expected, broken
        assert words in json.dumps(report) + errors, broken


def copy(vendor: Path, folder: Path) -> Path:
    return Path(shutil.copytree(vendor, folder))


def tensor_of(folder: Path, name: str) -> tuple[Path, int, int]:
    """The file of a tensor, and its bytes' begin and end there."""
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:HEADER], "little")
    begin, end = json.loads(raw[HEADER : HEADER + length])[name]["data_offsets"]
    return file, HEADER + length + begin, HEADER + length + end


def rewrite(folder: Path, name: str, change: Any) -> Path:
    file, begin, end = tensor_of(folder, name)
    raw = bytearray(file.read_bytes())
    raw[begin:end] = change(bytes(raw[begin:end]))
    file.write_bytes(raw)
    return folder


def doubled_scales(vendor: Path, folder: Path) -> Path:
    """bf16 has its exponent from the eighth bit on."""
    name = f"{LAYER}.weight_scale"
    return rewrite(
        copy(vendor, folder), name, lambda raw: (np.frombuffer(raw, "<u2") + 128).tobytes()
    )


def other_revision(vendor: Path, folder: Path) -> Path:
    """Another order of the rows, as if the layer had been trained again."""
    return rewrite(copy(vendor, folder), f"{LAYER}.weight", lambda raw: raw[1152:] + raw[:1152])


def swapped_tokenizer(vendor: Path, folder: Path) -> Path:
    file = copy(vendor, folder) / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[1000:1002]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(tokenizer))
    return folder


def missing_shard(vendor: Path, folder: Path) -> Path:
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (copy(vendor, folder) / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def wrong_config(vendor: Path, folder: Path) -> Path:
    file = copy(vendor, folder) / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"]["ignore"].append("re:.*q_proj")
    file.write_text(json.dumps(config))
    return folder
