"""A worker's HTTP clients go through the server's socket, whatever host their URL names."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from answering_socket import answering

from pipeline.core.events import Silent
from pipeline.core.process_environment import server_environment
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.stages.context import BOOTSTRAP
from recipes.engines.vllm import Vllm

ROOT = Path(__file__).parents[2]
CLIENT = """
import asyncio, json, sys
from pipeline.workers.unix_socket import connect_through
connect_through(sys.argv[1])
from aiohttp import ClientSession, TCPConnector

async def ask():
    connector = TCPConnector(**json.loads(sys.argv[2]))
    async with ClientSession(connector=connector, trust_env=True) as session:
        async with session.get("http://localhost/health") as answer:
            print(answer.status)

asyncio.run(ask())
"""


COUNTING = """
import json, sys
from pipeline.workers.unix_socket import connect_through
connect_through(sys.argv[1])
from pipeline.workers.engine_metrics import DraftCount

counts = [DraftCount("http://localhost", each) for each in (json.loads(sys.argv[2]), {})]
print(json.dumps([each.facts() for each in counts]))
"""


# What lm-eval and vLLM's load generator make their connectors with.
SETTINGS = {
    "evaluate": {"limit": 4, "ssl": True},
    "serve": {
        **{"limit": 8, "limit_per_host": 8, "ttl_dns_cache": 300, "use_dns_cache": True},
        **{"keepalive_timeout": 60, "enable_cleanup_closed": True, "force_close": False},
        "ssl": False,
    },
}


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    """That of a server like ours."""
    with answering(tmp_path / "s") as path:
        yield path


@pytest.mark.parametrize("name", SETTINGS)
def test_a_tcp_connector_goes_through_the_socket(name: str, socket: Path) -> None:
    python = ensure(name, Accelerator.CPU, load_settings(), Silent()).python
    asked = subprocess.run(
        [python, "-c", CLIENT, str(socket), json.dumps(SETTINGS[name])],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert asked.stdout.strip() == "200", asked.stderr


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_drafted_is_counted_through_the_socket(name: str, socket: Path) -> None:
    python = ensure(name, Accelerator.CPU, load_settings(), Silent()).python
    asked = subprocess.run(
        [python, "-c", COUNTING, str(socket), json.dumps(dict(Vllm.counters))],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    told = {"drafted": {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}}
    assert json.loads(asked.stdout or "null") == [told, {}], asked.stderr


@pytest.mark.timeout(900)  # it imports the engine
def test_the_load_test_goes_through_the_socket(
    socket: Path, demo_model: Path, tmp_path: Path
) -> None:
    python = ensure("serve", Accelerator.CPU, load_settings(), Silent()).python
    workload = {"input_tokens": 8, "output_tokens": 4, "requests": 6, "concurrency": 3}
    spec = {
        "workload": {**workload, "warmup_requests": 1, "seed": 1},
        **{"url": "http://localhost", "socket": str(socket), "model": "m"},
        **{"tokenizer": str(demo_model), "trust_remote_code": False},
        "counters": dict(Vllm.counters),
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    output = tmp_path / "output"
    output.mkdir()
    result = tmp_path / "result.json"
    worker = [python, BOOTSTRAP, "pipeline.workers.benchmark", tmp_path / "spec.json"]
    ran = subprocess.run(
        [*map(str, worker), str(result), str(output)],
        env=server_environment(os.environ, {}, python=python),
        capture_output=True,
        text=True,
    )
    answer = json.loads(result.read_text())
    assert answer["ok"], (answer, ran.stdout[-2000:])
    assert answer["result"]["failed_requests"] == 0
    assert answer["result"]["requests"] == 6
    drafted = answer["result"]["drafted"]
    assert drafted["drafts"] == drafted["accepted_tokens"] >= 6
    assert drafted["draft_tokens"] == 4 * drafted["drafts"]
