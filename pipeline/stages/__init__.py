"""The stages: one module each, with `run(context) -> result`, and a line in core/stage_key.py.

A stage reads its parameters, its inputs' folders and its runtime, and writes into its own folder;
nothing else.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from pipeline.core.stage_key import REVISIONS


def stage_module(name: str) -> ModuleType:
    """The module of that stage; raises KeyError when there is none."""
    if name not in REVISIONS:
        raise KeyError(name)
    return import_module(f"pipeline.stages.{name}")
