"""GPU-minutes of a verdict on an 8B model by the policy `default`, FP8 and AWQ, both good.

    .venv/bin/python benchmarks/gpu_minutes.py

The product's own planner and loop work on pretended models, and a clock moves by what an H100 took
(`results/h100.json`: starts, imports, tokens a second). Not measured there, and assumed: seconds of
quantizing, of the check of weights and of the engine's parser, and shared prefixes of MMLU. A GPU
costs from a piece's first to its last second, whether it is busy or not.

`before` is the product of 2026-11-28: each start imported the engine again for its version, each
load its generator, weights were checked with a GPU held, and 64 requests were in flight.

Prints one JSON line with minutes by part. Exits with 1 above the goal of 30 minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "unit"), str(ROOT / "tests")]

from fake_run import HARDWARE, FakeRun, equal  # noqa: E402
from pretend_stages import PretendContext, PretendModels, PretendRun, PretendServers  # noqa: E402

from pipeline.plan.plan import Arm  # noqa: E402
from pipeline.run.run import Run  # noqa: E402
from prepare.lots import NOTHING, Lot, Needs  # noqa: E402
from prepare.stage import StageSpec  # noqa: E402
from recipes.catalog import load_policy  # noqa: E402

GOAL_MINUTES = 30
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "h100.json").read_text())
VARIANTS = {"baseline": "bf16", "fp8-dynamic": "fp8", "awq-w4a16": "w4a16"}
LAYERS = 32  # of Llama-3.1-8B
IN_FLIGHT_256 = 1.4  # times the tokens of 64 in flight

# Questions of a suite; then tokens of one that are read behind a shared prefix, and written.
QUESTIONS = {"mmlu": 14_042, "code": 542, "rouge": 6_000}
READ = {"mmlu": 150, "code": 200, "rouge": 500}
WRITTEN = {"mmlu": 1, "code": 16 * 200, "rouge": 100}
CHAT_TOKENS = 256  # of an answer under load

ASSUMED_QUANTIZE = {"fp8-dynamic": 68.0, "awq-w4a16": 980.0}
ASSUMED_CHECK_S = 120.0


def concurrent_load(variant: str) -> dict[str, Any]:
    """Return the measured load of 64 requests in flight."""
    for load in MEASURED["served_side_by_side"]["loads"]:
        if (load["concurrent"], load["variant"]) == (64, VARIANTS[variant]):
            return dict(load)
    raise LookupError(variant)


def read_rate(variant: str) -> float:
    """Return tokens read a second, by the time of 2,048 rows in a layer."""
    layer = MEASURED["layer_us_by_rows"]["2048"]
    return 2_048 / (LAYERS * layer["fp8" if VARIANTS[variant] == "fp8" else "bf16"] * 1e-6)


def written_rate(variant: str) -> float:
    """Return tokens written a second at 64 in flight."""
    rates = concurrent_load(variant)["output_tokens_per_s"]
    return float(sum(rates) / len(rates))


@dataclass
class Clock:
    """Seconds by part while a GPU is held, as before or today."""

    as_before: bool
    gpus: int = 0
    seconds: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    versions_asked: int = 0

    def spend(self, part: str, seconds: float) -> None:
        if self.gpus:
            self.seconds[part] += seconds


class Models(PretendModels):
    """Good variants, with the questions that the policy's suites have."""

    def questions_of(self, suite: str) -> list[dict[str, Any]]:
        self.questions = QUESTIONS[suite]
        return super().questions_of(suite)

    def answer(self, variant: str, suite: str, question: dict[str, Any]) -> dict[str, Any]:
        row = super().answer(variant, suite, question)
        return {**row, "unrelated": 0.0} if suite.startswith("rouge") else row


@contextmanager
def timed(clock: Clock) -> Iterator[None]:
    """Let the product's loop move the clock meanwhile."""
    own: dict[str, Any] = {
        "take": PretendServers.take,
        "give_back": PretendServers.give_back,
        "start_process": PretendServers.start_process,
        "execute_stage": PretendRun.execute_stage,
        "run_worker": PretendContext.run_worker,
        "put_under_load": PretendContext.put_under_load,
        "is_on_gpus": Run.is_on_gpus,
    }

    def take(self: PretendServers, needs: Needs, **how: Any) -> Lot | None:
        lot: Lot | None = own["take"](self, NOTHING, **how)
        clock.gpus = max(clock.gpus, needs.gpus)
        return lot

    def give_back(self: PretendServers) -> None:
        own["give_back"](self)
        clock.gpus = 0

    def start_process(self: PretendServers, arm: Arm) -> dict[str, Any]:
        alone = MEASURED["alone"][VARIANTS[arm.recipe.name]]
        clock.starts += 1
        clock.spend("starts", alone["start_s"])
        if clock.as_before or not clock.versions_asked:
            clock.versions_asked += 1
            clock.spend("the engine's version", alone["import_s"])
        return own["start_process"](self, arm)

    def execute_stage(self: PretendRun, spec: StageSpec, servers: Any = None) -> bool:
        if spec.stage == "quantize":
            clock.spend("quantizing (assumed)", ASSUMED_QUANTIZE[spec.variant])
        if spec.stage == "check_weights":
            clock.gpus = int(clock.as_before)
            clock.spend("checks of weights (assumed)", ASSUMED_CHECK_S)
        return own["execute_stage"](self, spec, servers)

    def run_worker(
        self: PretendContext, worker: str, worker_spec: dict[str, Any], **how: Any
    ) -> dict[str, Any]:
        before = len(self.models.asked)
        result = own["run_worker"](self, worker, worker_spec, **how)
        for variant, role, asked in self.models.asked[before:]:
            suite = role.partition(" ")[0]  # `mmlu again` measures the noise floor
            seconds = asked * READ[suite] / read_rate(variant)
            faster = 1.0 if clock.as_before else IN_FLIGHT_256
            seconds += asked * WRITTEN[suite] / (written_rate(variant) * faster)
            clock.spend(f"asking {suite}", seconds)
        return dict(result)

    def put_under_load(self: PretendContext, worker_spec: dict[str, Any]) -> dict[str, Any]:
        if clock.as_before:
            clock.spend("load generators", MEASURED["alone"]["bf16"]["import_s"])
        result = own["put_under_load"](self, worker_spec)
        for load in worker_spec["loads"]:
            # The short look takes half as long again.
            clock.spend("loads", 1.5 * float(load["workload"]["seconds"]))
        return dict(result)

    replaced = {
        PretendServers: {"take": take, "give_back": give_back, "start_process": start_process},
        PretendRun: {"execute_stage": execute_stage, "is_on_gpus": True},
        PretendContext: {"run_worker": run_worker, "put_under_load": put_under_load},
    }
    for kind, methods in replaced.items():
        for name, method in methods.items():
            setattr(kind, name, method)
    try:
        yield
    finally:
        for kind, methods in replaced.items():
            for name in methods:
                setattr(kind, name, own[name])


def measure(*, as_before: bool) -> dict[str, Any]:
    """Return one run's GPU-minutes."""
    clock = Clock(as_before)
    models = Models(equal)
    for variant in VARIANTS:
        load = concurrent_load(variant)
        models.seconds[variant] = (load["ttft_ms"] + CHAT_TOKENS * load["tpot_ms"]) / 1e3
    hardware = {**HARDWARE, "accelerator": "cuda"}
    recipes = ("fp8-dynamic", "awq-w4a16")
    with tempfile.TemporaryDirectory() as folder, timed(clock):
        made = FakeRun(
            Path(folder) / "store",
            models,
            load_policy("default"),
            recipes,
            hardware=hardware,
            starts="fresh",
        )
        report = made.run()
    parts = {name: round(seconds / 60, 1) for name, seconds in clock.seconds.most_common()}
    return {
        "gpu_minutes": round(sum(clock.seconds.values()) / 60, 1),
        "verdicts": {each.recipe: each.verdict for each in report.variants},
        "starts": clock.starts,
        "parts": parts,
    }


def main() -> int:
    """Compare before and today, print one line, and return the exit code."""
    before = measure(as_before=True)
    today = measure(as_before=False)
    is_reached = today["gpu_minutes"] <= GOAL_MINUTES
    line = {"benchmark": "gpu_minutes", "before": before, "today": today, "goal": GOAL_MINUTES}
    ratio = round(today["gpu_minutes"] / before["gpu_minutes"], 3)
    print(json.dumps({**line, "ratio": ratio, "passed": is_reached}))
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
