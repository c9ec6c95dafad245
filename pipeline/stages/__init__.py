"""The stages: one folder each, with declaration and code (`run.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol, cast

from pipeline.core.errors import EvidenceError
from pipeline.core.record import Record
from pipeline.core.stage import Stage, StageRecord, TypedStageRecord

if TYPE_CHECKING:
    from pipeline.stages.context import StageContext


class StageImplementation(Protocol):
    """A module `run.py`; names in `RESUMED` survive an interruption."""

    def run(self, context: StageContext[Any, Any], /) -> Record:
        """Return the declared result."""


def stage_code(name: str) -> StageImplementation:
    """Import the stage's code, or raise KeyError."""
    return cast(StageImplementation, import_module(f"{_stage_folders()[name]}.run"))


def stage_names() -> list[str]:
    """Return the sorted names of all stages."""
    return sorted(_stage_folders())


def stage_named(name: str) -> Stage[Any, Any, Any]:
    """Import the stage's declaration, or raise KeyError."""
    stage: Stage[Any, Any, Any] = getattr(import_module(_stage_folders()[name]), name.upper())
    return stage


def newest_revision(name: str) -> int:
    """Return a stage's revision, or 0."""
    return stage_named(name).revision if name in stage_names() else 0


def known_of(records: Iterable[StageRecord]) -> Iterator[TypedStageRecord[Record, Record]]:
    """Yield valid records of known stages."""
    for record in records:
        try:
            kept = stage_named(record.stage).typed(record)
            _ = kept.parameters, kept.result
        except (KeyError, EvidenceError):  # from another version
            continue
        yield kept


@cache
def _stage_folders() -> dict[str, str]:
    return {
        module.name: f"{__name__}.{module.name}"
        for module in iter_modules(import_module(__name__).__path__)
        if module.ispkg
    }
