"""Held-out loss of AWQ with bytes given back, and of first and last layers or random sets instead.

    nice -n 19 .venv/bin/python benchmarks/mixed_precision.py [--blocks 16]

Needs the demo checkpoint, which `make demo` makes. AWQ runs once, by the product's modifiers in its
quantizing environment; then each allocation takes a module's values from 4 bits or from FP8, with
FP8 activations there. The loss is the Kullback-Leibler divergence of the next token from the
unquantized model's, in nats, over blocks of the carried texts that AWQ did not see. At 5 and 10 %
more bytes:

    chosen   by `awq-w4a16+5` and `+10`, the product's own choice
    edges    first and last layers, from the outside inwards
    random   ten orders, filled to the same bytes

Prints one JSON line. Exits with 1 if the chosen sets lose more than the edges or than the mean of
the random ones, at either size. It takes about 35 minutes of CPU time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.data_sources import BUILTIN_CALIBRATION
from pipeline.plan.locator import demo_stage
from prepare.events import NullProgress
from recipes.accelerator import Accelerator
from recipes.catalog import load_profile, load_recipe
from recipes.checkpoints.checkpoint import Checkpoint, read_folder
from recipes.checkpoints.module_kind import block_name
from recipes.checkpoints.reference import parse_reference
from recipes.checkpoints.variant_size import variant_weights
from recipes.rungs import FusedSet, choose_sets, measure_sets

DEMO = "demo:smollm2-135m"
PERCENTS = (5, 10)
ORDERS = 10
GRID_POINTS = 8  # as the profile `cpu` limits AWQ
INSIDE = Path(__file__).with_name("mixed_precision_inside.py")
ROOT = Path(__file__).parents[1]


def demo_checkpoint() -> Checkpoint:
    """Return the demo's checkpoint; SystemExit if it is not made."""
    settings = load_settings()
    spec = demo_stage(parse_reference(DEMO), load_profile("cpu"), settings)
    store = settings.open_store()
    if store.find(spec.stage, spec.key) is None:
        sys.exit("the demo checkpoint is not made yet: make demo")
    return read_folder(store.stage_folder(spec.stage, spec.key) / "output")


def fill(order: list[FusedSet], budget: int) -> list[FusedSet]:
    """Return the sets that fit, in this order."""
    taken = []
    for one in order:
        if one.more_bytes <= budget:
            taken.append(one)
            budget -= one.more_bytes
    return taken


def from_the_edges(sets: list[FusedSet]) -> list[FusedSet]:
    """Return the sets of the outermost layers first."""
    layers = [int(block_name(f"{one.modules[0]}.").rpartition(".")[2]) for one in sets]
    distances = {
        one.pattern: min(layer, max(layers) - layer)
        for one, layer in zip(sets, layers, strict=True)
    }
    return sorted(sets, key=lambda one: distances[one.pattern])


def allocations(sets: list[FusedSet], whole: int) -> dict[str, list[FusedSet]]:
    """Return what is given back, by name."""
    given: dict[str, list[FusedSet]] = {"awq": [], "fp8": sets}
    for percent in PERCENTS:
        budget = int(whole * Decimal(percent) / 100)
        given[f"chosen +{percent}"] = choose_sets(sets, budget)
        given[f"edges +{percent}"] = fill(from_the_edges(sets), budget)
        for seed in range(ORDERS):
            order = random.Random(seed).sample(sets, len(sets))
            given[f"random +{percent} {seed}"] = fill(order, budget)
    return given


def main() -> int:
    """Measure every allocation; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=16, help="held-out blocks of 256 tokens")
    blocks = parser.parse_args().blocks
    source = demo_checkpoint()
    recipe = load_recipe("awq-w4a16")
    weights = variant_weights(source.tensors, recipe.quantization, source.config)
    assert source.here is not None
    sets = measure_sets(recipe, source.here, weights, "FP8_DYNAMIC", NullProgress())
    given = allocations(sets, weights.bytes)
    python = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress()).python
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "checkpoint": str(source.here),
            "texts": str(BUILTIN_CALIBRATION),
            "quantization": recipe.quantization.model_dump() | {"grid_points": GRID_POINTS},
            "blocks": blocks,
            "allocations": {
                name: [module for one in chosen for module in one.modules]
                for name, chosen in given.items()
            },
        }
        file = Path(folder) / "asked.json"
        file.write_text(json.dumps(asked))
        command = [str(python), str(INSIDE), str(ROOT), str(file)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    losses: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    results: dict[str, Any] = {name: round(losses[name], 4) for name in ("awq", "fp8")}
    holds = True
    for percent in PERCENTS:
        drawn = [losses[f"random +{percent} {seed}"] for seed in range(ORDERS)]
        chosen = losses[f"chosen +{percent}"]
        edges = losses[f"edges +{percent}"]
        mean = statistics.mean(drawn)
        gap = losses["awq"] - losses["fp8"]
        results[f"+{percent} %"] = {
            "chosen": round(chosen, 4),
            "edges": round(edges, 4),
            "random": round(mean, 4),
            "best_random": round(min(drawn), 4),
            "gap_closed": {
                name: round((losses["awq"] - loss) / gap, 2)
                for name, loss in (("chosen", chosen), ("edges", edges), ("random", mean))
            },
        }
        holds = holds and chosen < min(edges, mean)
    print(json.dumps({"tokens": blocks * 256, "nats": results, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
