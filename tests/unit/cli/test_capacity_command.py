"""`prepare plan --gpu` from end to end on a folder: tables, JSON, errors; it downloads nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_checkpoint import safetensors, write_files
from typer.testing import CliRunner

from pipeline.cli.main import app
from prepare.errors import CheckpointError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    tensors = {
        "model.embed_tokens.weight": ("BF16", (64, 128)),
        "model.layers.0.self_attn.q_proj.weight": ("BF16", (128, 128)),
        "model.layers.0.mlp.down_proj.weight": ("BF16", (128, 256)),
        "lm_head.weight": ("BF16", (64, 128)),
    }
    folder = tmp_path / "model"
    files = {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors": safetensors(tensors),
    }
    return str(write_files(folder, files))


def test_the_tables(model: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(app, ["plan", model, "--gpu", "t4", "--gpus", "8"])
    assert done.exit_code == 2, done.output
    assert "LlamaForCausalLM" in done.stdout
    assert "8 x t4" in done.stdout
    assert "would be refused: fp8-dynamic needs" in done.stdout
    refusals = [text for text in done.stdout.splitlines() if text.startswith("would be refused")]
    assert all("; where: " in text for text in refusals)
    assert len(done.stdout.splitlines()) <= 25
    every = CliRunner().invoke(app, ["plan", model, "--gpu", "t4", "--gpus", "8", "--verbose"])
    assert "4 attention heads cannot be split over 8 GPUs" in every.stdout
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "model-Q4_K.gguf"])
def test_weights_that_are_not_read_are_refused(tmp_path: Path, name: str) -> None:
    """Without any weights config.json suffices; these would be refused by the run."""
    folder = write_files(tmp_path / "m", {"config.json": json.dumps(CONFIG).encode(), name: b"x"})
    done = CliRunner().invoke(app, ["plan", str(folder), "--gpu", "h100"])
    assert isinstance(done.exception, CheckpointError)


def test_json(model: str) -> None:
    options = ["--gpu", "h100", "--recipe", "fp8-dynamic", "--context", "128", "--json"]
    done = CliRunner().invoke(app, ["plan", model, *options])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["serving"] == "profile h100"
    assert found["context"] == 128
    assert [fit["variant"] for fit in found["fits"]] == ["baseline", "fp8-dynamic"]


@pytest.mark.parametrize(("kv_format", "code"), [("octave-k3v4", 2), ("int4-per-token-head", 0)])
def test_a_kv_format_that_the_cuda_build_lacks(model: str, kv_format: str, code: int) -> None:
    options = ["--gpu", "h100", "--recipe", "fp8-dynamic", "--kv", f"fp8,{kv_format}", "--verbose"]
    done = CliRunner().invoke(app, ["plan", model, *options])
    assert done.exit_code == code, done.output
    refused = [line for line in done.stdout.splitlines() if line.startswith("would be refused")]
    assert [f"--kv {kv_format.replace('-', '_')}" in line for line in refused] == [True] * (
        code // 2
    )
