"""What counts and what loads goes through our server's socket."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from answering_socket import answering

from eval_gates.engine_metrics import counts_between
from eval_gates.speed.load_run import LOADS, read_loads
from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.stages.staying_workers import BOOTSTRAP
from prepare.events import NullProgress
from prepare.process_environment import server_environment
from recipes.accelerator import Accelerator
from recipes.engines.vllm import Vllm
from recipes.workload import RandomWorkload

ROOT = Path(__file__).parents[2]
COUNTERS = dict(Vllm.counters)
COUNTING = """
import json, sys
from eval_gates.engine_metrics import SpecDecodeCounter

names = (json.loads(sys.argv[2]), {})
counts = [SpecDecodeCounter("http://localhost", each, sys.argv[1]) for each in names]
print(json.dumps([each.facts() for each in counts]))
"""


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    """That of a server like ours."""
    with answering(tmp_path / "s") as path:
        yield path


@pytest.mark.parametrize("name", ["evaluate", "serve"])
def test_what_is_drafted_is_counted_through_the_socket(name: str, socket: Path) -> None:
    python = ensure(name, Accelerator.CPU, load_settings(), NullProgress()).python
    asked = subprocess.run(
        [python, "-c", COUNTING, str(socket), json.dumps(COUNTERS)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    told = {"spec_decode": {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}}
    assert json.loads(asked.stdout or "null") == [told, {}], asked.stderr


@pytest.mark.timeout(900)  # it imports the engine
def test_a_load_goes_through_the_socket(socket: Path, demo_model: Path, tmp_path: Path) -> None:
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    workload = RandomWorkload.model_validate(
        {
            **{"kind": "random", "input_tokens": 8, "output_tokens": 4},
            **{"arrivals": {"rate": 4.0}, "seconds": 1, "warmup_seconds": 0},
        }
    )
    endpoint = {
        "url": "http://localhost",
        "socket": str(socket),
        "model": "m",
        "counters": COUNTERS,
    }
    load = {
        "name": "few",
        "workload": workload.model_dump(),
        "rule": {"kind": "slo", "alpha": 0.05, "blocks": 1, "limits": {"ttft_ms_p50": 1e4}},
        "seed": 7,
    }
    spec = {
        "arms": [{"arm": "fp8", "side": "candidate", "block": 0, "server_run": 0, "order": 0}],
        "loads": [load],
        "endpoints": {"fp8": endpoint},
        **{"tokenizer": str(demo_model), "trust_remote_code": False, "on_gpus": False},
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    output = tmp_path / "output"
    output.mkdir()
    result = tmp_path / "result.json"
    worker = [python, BOOTSTRAP, "eval_gates.speed.speed_worker", tmp_path / "spec.json"]
    ran = subprocess.run(
        [*map(str, worker), str(result), str(output)],
        env=server_environment(os.environ, {}, python=python),
        capture_output=True,
        text=True,
    )
    answer = json.loads(result.read_text())
    assert answer["ok"], (answer, ran.stdout[-2000:])
    (measured,) = read_loads(output / LOADS)
    assert set(measured.requests.error) == {None}
    assert measured.before is not None
    assert measured.after is not None
    drafted = counts_between(measured.before.model_dump(), measured.after.model_dump())
    assert drafted is not None
    assert drafted["drafts"] == drafted["accepted_tokens"] >= len(measured.requests)
