"""The code of the stages: a module each, beside the declaration of that name in artifacts/stages.

A stage reads its parameters, its inputs' folders and its runtime, and writes into its own folder;
nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from artifacts.stages import stage_names
from pipeline.core.record import Record
from pipeline.core.stage_record import StageRecord

if TYPE_CHECKING:
    from pipeline.stages.context import StageContext


class StageImplementation(Protocol):
    """A module of this folder.

    It may have three more: `still_holds(record)`, whether what a finished stage says of the world
    outside of the store is so today, else it runs again; RESUMED, the names of what a try that did
    not come to its end leaves to the next in the stage's own folder; and `is_unfinished(record)`,
    whether the next run continues it from these.
    """

    def run(self, context: StageContext[Any, Any], /) -> Record | None:
        """Do it; what the stage found, in the declared shape.

        None of one with RESUMED that is to be run again, with other servers up.
        """


def is_unfinished(record: StageRecord) -> bool:
    """Whether the next run continues what the stage left, by its `is_unfinished`."""
    of_stage = getattr(stage_code(record.stage), "is_unfinished", None)
    return of_stage is not None and bool(of_stage(record))


def stage_code(name: str) -> StageImplementation:
    """The module of that stage; raises KeyError when there is none."""
    if name not in stage_names():
        raise KeyError(name)
    return cast(StageImplementation, import_module(f"{__name__}.{name}"))
