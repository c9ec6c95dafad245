"""Where stages run: the only place that knows. A new executor is a module here and its line."""

from __future__ import annotations

from pathlib import Path

from pydantic import create_model

from pipeline.core.errors import UsageError
from pipeline.core.record import Record
from pipeline.environments.settings import Settings
from pipeline.environments.settings_file import find_settings_file
from pipeline.run.executors.executor import Allocation, Executor, ExecutorOptions, Job, Listener
from pipeline.run.executors.local import LocalOptions
from pipeline.run.executors.ray import RayOptions
from pipeline.run.executors.slurm import SlurmOptions
from recipes.config_file import shorten, validate

__all__ = [
    "EXECUTORS",
    "Allocation",
    "Executor",
    "ExecutorOptions",
    "Job",
    "Listener",
    "executor_of",
]

EXECUTORS: dict[str, type[ExecutorOptions]] = {
    "local": LocalOptions,
    "ray": RayOptions,
    "slurm": SlurmOptions,
}


def executor_of(settings: Settings) -> Executor:
    """The executor that the settings describe.

    Raises:
        UsageError: there is none of that kind, a key of it is wrong, or it cannot be used here.
    """
    asked = settings.executor
    file = find_settings_file()
    known = EXECUTORS.get(str(asked.get("kind")))
    if known is None:
        raise UsageError(
            f"there is no executor of the kind {shorten(ascii(asked.get('kind')))}",
            where=f"--executor, or {file or 'the settings file'}, key executor.kind",
            hint=f"known: {', '.join(EXECUTORS)}",
        )
    # One of several keys, as it stands in the file, so that a message names it as the user did.
    around = create_model("Around", __base__=Record, executor=(known, ...))
    noun = "settings file"
    found = validate({"executor": asked}, file or Path(f"(no {noun})"), noun, around)
    options: ExecutorOptions = dict(found)["executor"]
    return options.open()
