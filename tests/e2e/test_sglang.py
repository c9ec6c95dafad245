"""SGLang for real, on a CPU: it serves the demo model, is judged, and answers as vLLM does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from free_port import free_port
from prepare_command import prepare
from quiz_policy import quiz_policy

from pipeline.core.events import NullProgress
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.serving.serving_names import SERVED_NAME
from recipes.catalog import load_profile

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600), pytest.mark.of_everything]

BY_CHAT = """
name: itself
summary: by messages alone
suites: {rouge: {kind: rouge, about: benchmark, margins: {fp8: 0.08}, batch: 8, max_tokens: 32,
  noise_floor_questions: 8}}
"""


def test_other_arguments_of_sglang_are_promoted(demo_model: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    found = prepare(
        store,
        *("model", str(demo_model), "--profile", "cpu-sglang", "--name", "demo"),
        *("--policy", quiz_policy(tmp_path), "--served-variant", "lpm=--schedule-policy lpm"),
        *("--registry", f"sqlite:///{tmp_path}/registry.db", "--json"),
        timeout=3400,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    (variant,) = json.loads(found.stdout)["variants"]
    assert (variant["verdict"], variant["promoted"]) == ("pass", True)
    registry = ("--registry", f"sqlite:///{tmp_path}/registry.db")
    (champion,) = json.loads(prepare(store, "registry", "list", "--json", *registry).stdout)
    serving = json.loads(champion["tags"]["prepare.serving"])
    assert serving["engine"] == "sglang"
    assert serving["engine_arguments"]["schedule-policy"] == "lpm"
    assert json.loads(prepare(store, "verify", "latest", "--json").stdout)["same"]


@contextmanager
def serve_with_sglang(model: Path, log: Path) -> Iterator[Server]:
    """In float32, as the shared server of vLLM."""
    profile = load_profile("cpu-sglang")
    arguments = ServingArguments.of(profile, is_baseline=True)
    arguments.engine_arguments["dtype"] = "float32"
    python = ensure("serve-sglang", Accelerator.CPU, load_settings(), NullProgress()).python
    server = Server(python, model, arguments, log, port=free_port())
    try:
        server.start(profile.ready_timeout_seconds, NullProgress())
        yield server
    finally:
        server.stop()


def with_negated_attention(model: Path, folder: Path) -> Path:
    """The model with another sign of all matrices of attention's outputs (bf16, little-endian)."""
    copy = Path(shutil.copytree(model, folder))
    file = copy / "model.safetensors"
    raw = bytearray(file.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    for name, tensor in json.loads(raw[8 : 8 + length]).items():
        if name.endswith("self_attn.o_proj.weight"):
            begin, end = (8 + length + place for place in tensor["data_offsets"])
            raw[begin + 1 : end : 2] = bytes(byte ^ 0x80 for byte in raw[begin + 1 : end : 2])
    file.write_bytes(raw)
    return copy


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_same_weights_pass_and_broken_ones_do_not(
    server: Server, demo_model: Path, tmp_path: Path, is_broken: bool
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(BY_CHAT)
    model = with_negated_attention(demo_model, tmp_path / "broken") if is_broken else demo_model
    with serve_with_sglang(model, tmp_path / "server.log") as sglang:
        found = prepare(
            tmp_path / "store",
            *("gate", "--api", "chat", "--policy", str(policy), "--json"),
            *("--baseline", server.url, "--baseline-model", SERVED_NAME),
            *("--candidate", sglang.url, "--candidate-model", str(model)),
            timeout=3400,
        )
    (gate,) = json.loads(found.stdout)["variants"][0]["gates"]
    assert gate["verdict"] == ("fail" if is_broken else "pass"), found.stdout
    assert found.returncode == (4 if is_broken else 0)
    if not is_broken:
        assert abs(gate["difference"]) < 0.01  # both compute in float32
