"""The load client sends every kind of workload as it is described, through a socket."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from answering_socket import answering

from eval_gates.speed.load_run import RequestColumns
from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from prepare.process_environment import server_environment
from recipes.accelerator import Accelerator

# Building the environment is in it, where that is not there yet.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.of_everything,
]

ROOT = Path(__file__).parents[2]
CLIENT = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from eval_gates.speed.load_client import LoadClient, LoadTarget
from eval_gates.speed.load_prompts import open_source
target = LoadTarget("http://localhost", "m", sys.argv[1], {})
for name, workload in json.loads(sys.argv[3]).items():
    source = open_source(workload, sys.argv[5], trust_remote_code=False)
    at_once = workload["arrivals"]["concurrency"]
    client = LoadClient(at_once=at_once, warmup_s=workload["warmup_seconds"])
    at = () if at_once else [0.05 * n for n in range(6)]
    loads = [client.measure(target, source.draw(6, seed), at) for seed in (1, 1, 2)]
    (Path(sys.argv[2]) / f"{name}.json").write_text(json.dumps(loads))
"""
AT_ONCE = {"rate": None, "concurrency": 3}
AT_A_RATE = {"rate": 20.0, "concurrency": None}


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    """That of a server that answers as vLLM does."""
    with answering(tmp_path / "s") as path:
        yield path


def test_every_kind_is_sent_as_described(socket: Path, demo_model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Hello {n}"}) + "\n" for n in range(6)))
    shared = {"prefixes": 2, "prefix_tokens": 30, "suffix_tokens": 10, "output_tokens": 5}
    workloads: dict[str, dict[str, Any]] = {
        "random": {"kind": "random", "input_tokens": 40, "output_tokens": 5, "arrivals": AT_ONCE},
        "shared": {"kind": "shared_prefix", **shared, "arrivals": AT_A_RATE},
        "requests": {
            **{"kind": "requests", "file": str(prompts), "output_tokens": 5},
            "arrivals": AT_ONCE,
        },
    }
    for workload in workloads.values():
        workload["warmup_seconds"] = 0.1
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    script = [str(socket), str(tmp_path), json.dumps(workloads), str(ROOT), str(demo_model)]
    ran = subprocess.run(
        [str(python), "-c", CLIENT, *script],
        env=server_environment(os.environ, {"PYTHONHASHSEED": "0"}, python=python),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    for name in workloads:
        loads: list[dict[str, Any]] = json.loads((tmp_path / f"{name}.json").read_text())
        digests = [load["prompts_sha256"] for load in loads]
        assert digests[0] == digests[1], name
        # A file's prompts are the same in every block; a salt keeps them out of the cache.
        assert digests[1] != digests[2] or name == "requests"
        for load in loads:
            requests = RequestColumns(**load["requests"])
            assert len(requests) == 6, name
            if workloads[name]["arrivals"] is AT_A_RATE:
                due = [0.05 * n for n in range(6)]
                late = [at - when for at, when in zip(requests.start_s, due, strict=True)]
                assert all(0 <= each < 0.05 for each in late)
            assert not any(requests.error), name
            assert set(requests.output_tokens) == {5}, name
            if name != "requests":
                assert all(abs(tokens - 40) <= 2 for tokens in requests.input_tokens), name
            # A load of a few milliseconds is over before the client was looked at.
            assert "client_lag_s" in load or workloads[name]["arrivals"] is AT_ONCE
