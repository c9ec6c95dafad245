"""Executors run stages; each is a module, imported when the settings name it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from pydantic import create_model

from pipeline.core.errors import UsageError
from pipeline.core.record import Record
from pipeline.environments.settings import Settings
from pipeline.environments.settings_file import find_settings_file
from pipeline.run.executors.executor import Allocation, Executor, ExecutorOptions, Job, Listener
from recipes.config_file import shorten, validate

__all__ = [
    "Allocation",
    "Executor",
    "ExecutorOptions",
    "Job",
    "Listener",
    "executor_of",
    "options_of",
]


KINDS = {"local": "LocalOptions", "ray": "RayOptions", "slurm": "SlurmOptions"}


def options_of(kind: str) -> type[ExecutorOptions]:
    """Return the settings model of an executor kind; raise KeyError if there is none."""
    module = import_module(f"{__name__}.{kind}") if kind in KINDS else None
    found: type[ExecutorOptions] = getattr(module, KINDS[kind])
    return found


def executor_of(settings: Settings) -> Executor:
    """Return the executor of the settings.

    Raises:
        UsageError: its kind or a key is unknown, or it cannot be used here.
    """
    asked = settings.executor
    file = find_settings_file()
    try:
        known = options_of(str(asked.get("kind")))
    except KeyError:
        raise UsageError(
            f"there is no executor of the kind {shorten(ascii(asked.get('kind')))}",
            where=f"--executor, or {file or 'the settings file'}, key executor.kind",
            hint=f"known: {', '.join(KINDS)}",
        ) from None
    # One of several keys, as it stands in the file, so that a message names it as the user did.
    around = create_model("Around", __base__=Record, executor=(known, ...))
    noun = "settings file"
    found = validate({"executor": asked}, file or Path(f"(no {noun})"), noun, around)
    options: ExecutorOptions = dict(found)["executor"]
    return options.open()
