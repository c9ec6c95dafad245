"""The code of the stages: a module each, beside the declaration of that name in artifacts/stages.

A stage reads its parameters, its inputs' folders and its runtime, and writes into its own folder;
nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from artifacts.stages import stage_names
from pipeline.core.record import Record

if TYPE_CHECKING:
    from pipeline.stages.context import StageContext


class StageCode(Protocol):
    """A module of this folder.

    It may have two more: `still_holds(record)`, whether what a finished stage says of the world
    outside of the store is so today, else it runs again; and RESUMED, the name of a folder in the
    stage's own that a killed try leaves to the next.
    """

    def run(self, context: StageContext[Any, Any], /) -> Record:
        """Do it; what the stage found, in the declared shape."""


def stage_code(name: str) -> StageCode:
    """The module of that stage; raises KeyError when there is none."""
    if name not in stage_names():
        raise KeyError(name)
    return cast(StageCode, import_module(f"{__name__}.{name}"))
