"""A pretended run that compares speed."""

from __future__ import annotations

from pathlib import Path

from fake_run import SERVING, FakeRun, equal, policy
from pretend_stages import PretendModels

from recipes.speed import SpeedPolicy

CHAT = {
    "kind": "random",
    "input_tokens": 8,
    "output_tokens": 4,
    "arrivals": {"concurrency": 4},
    "seconds": 1,
}


def bench(root: Path, accelerator: str, models: PretendModels | None = None) -> FakeRun:
    """Return a run with five blocks on a CPU, where servers stay up, or on GPUs."""
    ratio = {"min_ratio": 0.8, "workloads": ["chat"], "blocks": 5}
    speed = SpeedPolicy.model_validate({"ratio": ratio, "workloads": {"chat": CHAT}})
    made = FakeRun(root / "store", models or PretendModels(equal, 64), policy())
    made.policy = made.policy.model_copy(update={"speed": speed})
    arguments = {**SERVING["engine_arguments"], "max-model-len": 16384}
    made.serving = {**SERVING, "engine_arguments": arguments}
    made.hardware = {**made.hardware, "accelerator": accelerator}
    return made
