"""The stages: one module each, with a `REVISION` and a `run(context) -> result`.

A stage reads its parameters, its inputs' folders and its runtime, and writes into its own folder;
nothing else. Raise a module's REVISION when its output would change for the same parameters.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

STAGES = (
    "demo_checkpoint",
    "dry_run",
    "quantize",
    "adopt",
    "verify",
    "questions",
    "coherence",
    "evaluate",
    "benchmark",
    "judge",
    "evidence",
    "promote",
)


def stage_module(name: str) -> ModuleType:
    """The module of that stage; raises KeyError when there is none."""
    if name not in STAGES:
        raise KeyError(name)
    return import_module(f"pipeline.stages.{name}")
