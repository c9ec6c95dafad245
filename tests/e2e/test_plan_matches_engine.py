"""The plan's figure of the KV cache against the engine's own, from the shared server's log.

The server's cache is in float32. test_demo_run.py compares bf16 and FP8 in the same way.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.serving.server import Server
from recipes.catalog import load_profile
from recipes.checkpoints.checkpoint import read_folder
from recipes.checkpoints.layers import Stored, read_layers, sequence_bytes
from recipes.checkpoints.model_shape import model_shape
from recipes.engines.vllm import Vllm

# The first test may have to build the environments.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def test_tokens_of_the_kv_cache(server: Server, server_log: Path, demo_model: Path) -> None:
    command = server.command
    given = {name: command[command.index(f"--{name}") + 1] for name in ("max-model-len", "dtype")}
    assert given["dtype"] == "float32"
    block_size = int(command[command.index("--block-size") + 1])
    space = int(load_profile("cpu").environment["VLLM_CPU_KVCACHE_SPACE"])
    config, context = read_folder(demo_model).config, int(given["max-model-len"])
    layers = read_layers(config, model_shape(config, "config.json"), "config.json")
    planned = space * 2**30 / sequence_bytes(layers, context, Stored(4), block=block_size) * context
    logged = int(Vllm().facts_in(server_log.read_text())["kv_cache_tokens"])
    assert planned == pytest.approx(logged, rel=0.02)
