"""Puts servers under load in turn, inside the serving environment, until the time is over.

    PYTHONPATH=REPOSITORY SERVING_PYTHON benchmarks/hopper/loads.py SPEC.json

Each pass gives every side every load once, with the same prompts for all sides, in random order. A
line of JSON is written after each load. The first pass warms up; it counts where there is no other.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from vllm.benchmarks import serve

from eval_gates.speed.load_run import LoadRun
from eval_gates.speed.steady_state import latencies, output_rate
from pipeline.workers.load_generator import LoadGenerator, LoadTarget

PASSES = 6


def main(spec: dict[str, Any]) -> None:
    """Measure up to PASSES, as long as another one of the same length fits."""
    chance = random.SystemRandom()
    targets = {side: LoadTarget(**each) for side, each in spec["endpoints"].items()}
    output = Path(spec["output"])
    kept = output.read_text().splitlines() if output.is_file() else []
    first, longest = (json.loads(kept[-1])["pass"] + 1 if kept else 0), 0.0
    for number in range(first, first + PASSES):
        started = time.time()
        if number > first and started + longest > spec["deadline"]:
            return
        for load in spec["loads"]:
            generator = LoadGenerator(
                serve,
                {"kind": "random", "arrivals": {"concurrency": load["concurrency"]}, **load},
                tokenizer=spec["tokenizer"],
                trust_remote_code=False,
                folder=output.parent,
            )
            seed, sides = chance.getrandbits(31), list(targets)
            chance.shuffle(sides)
            for side in sides:
                requests = load["waves"] * load["concurrency"]
                found = generator.measure(targets[side], requests=requests, seed=seed)
                row = {"pass": number, "load": load["name"], "side": side}
                row |= figures(found, load["concurrency"], seed)
                with output.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
                print(json.dumps(row), file=sys.stderr, flush=True)
        longest = max(longest, time.time() - started)


def figures(found: dict[str, Any], concurrency: int, seed: int) -> dict[str, Any]:
    """Return a load's figures; latencies are medians of its steady state."""
    load = LoadRun.model_validate(
        {
            **{"side": "candidate", "workload": "hopper", "seed": seed, "server_run": 0},
            **{"block": 0, "order": 0, "arrivals": "concurrency", "concurrency": concurrency},
            **found,
        }
    )
    steady = latencies(load)
    return {
        "output_tokens_per_s": output_rate(load),
        "ttft_ms": sorted(steady.ttft_ms.tolist())[len(steady.ttft_ms) // 2],
        "tpot_ms": sorted(steady.tpot_ms.tolist())[len(steady.tpot_ms) // 2],
        "failed": sum(error is not None for error in load.requests.error),
        "client_lag_s": load.client_lag_s,
        "seconds": load.seconds,
    }


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
