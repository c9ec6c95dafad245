"""The stages: one folder each, with its declaration (`__init__.py`) and its code (`run.py`).

The declaration has the models of parameters, runtime and result, and a `Stage` in capitals. The
code reads parameters, runtime and the folders of inputs, and writes into its own folder only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol, cast

from pipeline.core.errors import EvidenceError
from pipeline.core.record import Record
from pipeline.core.stage import Stage, TypedStageRecord
from pipeline.core.stage_record import StageRecord

if TYPE_CHECKING:
    from pipeline.stages.context import StageContext

# The stages of a release use what is above this package.
PACKAGES = (__name__, "pipeline.release.stages")


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
    """Import the code of that stage; raises KeyError when there is none."""
    return cast(StageImplementation, import_module(f"{_stage_folders()[name]}.run"))


def stage_names() -> list[str]:
    """Names of all stages, sorted."""
    return sorted(_stage_folders())


def stage_named(name: str) -> Stage[Any, Any, Any]:
    """Import the declaration of that stage; raises KeyError when there is none."""
    stage: Stage[Any, Any, Any] = getattr(import_module(_stage_folders()[name]), name.upper())
    return stage


def newest_revision(name: str) -> int:
    """Return the revision of a stage's code; 0 if there is no such stage."""
    return stage_named(name).revision if name in stage_names() else 0


def known_of(records: Iterable[StageRecord]) -> Iterator[TypedStageRecord[Record, Record]]:
    """Those of the records whose stages there are, and that are of their shapes."""
    for record in records:
        try:
            kept = stage_named(record.stage).typed(record)
            _ = kept.parameters, kept.result
        except (KeyError, EvidenceError):  # of another version of prepare
            continue
        yield kept


@cache
def _stage_folders() -> dict[str, str]:
    """Packages of the stages, by name."""
    return {
        module.name: f"{package}.{module.name}"
        for package in PACKAGES
        for module in iter_modules(import_module(package).__path__)
        if module.ispkg
    }
