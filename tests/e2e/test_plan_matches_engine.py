"""The plan's figure of the KV cache against the engine's own, from the shared server's log.

The server's cache is in float32. test_demo_run.py compares bf16 and FP8 in the same way.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.inspection.header_source import read_folder
from pipeline.inspection.inspection import inspect
from pipeline.inspection.kv_cache import GIB, element_bytes
from pipeline.serving.server import Server
from recipes.catalog import load_profile
from recipes.engines.vllm import Vllm

# The first test may have to build the environments.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def test_tokens_of_the_kv_cache(server: Server, server_log: Path, demo_model: Path) -> None:
    command = server.command
    given = {name: command[command.index(f"--{name}") + 1] for name in ("max-model-len", "dtype")}
    assert given["dtype"] == "float32"
    block_size = int(command[command.index("--block-size") + 1])
    space = int(load_profile("cpu").environment["VLLM_CPU_KVCACHE_SPACE"])
    planned = inspect(read_folder(demo_model)).cache.capacity(
        space * GIB,
        context=int(given["max-model-len"]),
        block_size=block_size,
        element_bytes=element_bytes("auto", 4),
    )
    logged = int(Vllm().facts_in(server_log.read_text())["kv_cache_tokens"])
    assert planned.tokens == pytest.approx(logged, rel=0.02)
