"""What each stage is asked and what it leaves: a module a stage, with its `Stage` in capitals.

They lie below all who lay out stages, run them or read what they left. Their code is in
pipeline/stages, a module of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from pipeline.core.errors import EvidenceError
from pipeline.core.record import Record
from pipeline.core.stage import Stage, TypedStageRecord
from pipeline.core.stage_record import StageRecord


def stage_names() -> list[str]:
    """Names of all stages, sorted."""
    return sorted(module.name for module in iter_modules(__path__))


def stage_named(name: str) -> Stage[Any, Any, Any]:
    """The stage of that name; raises KeyError when there is none."""
    if name not in stage_names():
        raise KeyError(name)
    stage: Stage[Any, Any, Any] = getattr(import_module(f"{__name__}.{name}"), name.upper())
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
