"""Where stages run: the only place that knows. A new executor is a module here and its line."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.core.errors import UsageError
from pipeline.environments.settings import Settings, find_settings_file
from pipeline.run.executors.executor import Executor, Job, Listener, Place
from pipeline.run.executors.local import LocalExecutor

__all__ = ["EXECUTORS", "Executor", "Job", "Listener", "Place", "executor_of"]

EXECUTORS: dict[str, Callable[[], Executor]] = {
    "local": LocalExecutor,
}


def executor_of(settings: Settings) -> Executor:
    """The executor that the settings name; raises UsageError where there is none such."""
    if settings.executor not in EXECUTORS:
        raise UsageError(
            f"the settings file's 'executor' names none: {ascii(settings.executor)[:80]}",
            where=str(find_settings_file()),
            cure=f"known: {', '.join(EXECUTORS)}",
        )
    return EXECUTORS[settings.executor]()
