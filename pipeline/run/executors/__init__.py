"""Executors run stages; each is a module, found by its entry point."""

from __future__ import annotations

from pathlib import Path

from pydantic import create_model

from pipeline.core.errors import UsageError
from pipeline.core.plugins import EXECUTORS, load_class, plugin_names
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


def options_of(kind: str) -> type[ExecutorOptions]:
    """Return the settings model of an executor kind; raise as :func:`load_class`."""
    found: type[ExecutorOptions] = load_class(EXECUTORS, kind, ExecutorOptions)
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
    except LookupError:
        raise UsageError(
            f"there is no executor of the kind {shorten(ascii(asked.get('kind')))}",
            where=f"--executor, or {file or 'the settings file'}, key executor.kind",
            hint=f"known: {', '.join(plugin_names(EXECUTORS))}",
        ) from None
    # One of several keys, as it stands in the file, so that a message names it as the user did.
    around = create_model("Around", __base__=Record, executor=(known, ...))
    noun = "settings file"
    found = validate({"executor": asked}, file or Path(f"(no {noun})"), noun, around)
    options: ExecutorOptions = dict(found)["executor"]
    return options.open()
