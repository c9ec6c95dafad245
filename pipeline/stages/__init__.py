"""The stages, one module each with its declaration and its `run`, and the roles that they have.

A role names what a stage gives to an arm, or to a later stage. Several stages may give it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from prepare.errors import EvidenceError
from prepare.record import Record
from prepare.stage import Stage, StageRecord, TypedStageRecord

if TYPE_CHECKING:
    from pipeline.stages.context import StageContext

STAGES = (
    *("adopt", "block", "check_weights", "demo_checkpoint", "dequantize", "evaluate", "judge"),
    *("questions", "quantize", "recall", "recorded", "sanity", "speed"),
)

WEIGHTS = "weights"
"""Role of an arm's weights: `quantize` made them, or `adopt` took them over."""

CHECKED_WEIGHTS = "checked_weights"
"""Role of their check, by `check_weights`, which all that is asked of a variant depends on."""

FIRST_TEXTS = "first_texts"
"""Role of the texts that an arm wrote first: `sanity` tested it, or `recorded` has its evidence."""


def answers_role(side: str, suite: str) -> str:
    """Return the role that a side's answers to a suite have for a verdict."""
    return f"{side}.{suite}"


AGAIN = "again"
"""Prefix of the roles of answers by another start."""


def again_role(suite: str) -> str:
    """Return the role of a suite's answers by another start: of an arm, and for a verdict."""
    return f"{AGAIN}.{suite}"


def questions_role(suite: str) -> str:
    """Return the role of a suite's questions: in a plan, and for a verdict."""
    return f"questions.{suite}"


def speed_role(gate: str) -> str:
    """Return the role of a speed gate's measurement: of an arm, and for a verdict."""
    return f"speed.{gate}"


class StageImplementation(Protocol):
    """A stage's module; names in `RESUMED` survive an interruption."""

    def run(self, context: StageContext[Any, Any], /) -> Record:
        """Return the declared result."""


def stage_code(name: str) -> StageImplementation:
    """Import the stage's module, or raise KeyError."""
    if name not in STAGES:
        raise KeyError(name)
    return cast(StageImplementation, import_module(f"{__name__}.{name}"))


def stage_named(name: str) -> Stage[Any, Any, Any]:
    """Import the stage's declaration, or raise KeyError."""
    stage: Stage[Any, Any, Any] = getattr(stage_code(name), name.upper())
    return stage


def newest_revision(name: str) -> int:
    """Return a stage's revision, or 0."""
    return stage_named(name).revision if name in STAGES else 0


def known_of(records: Iterable[StageRecord]) -> Iterator[TypedStageRecord[Record, Record]]:
    """Yield valid records of known stages."""
    for record in records:
        try:
            kept = stage_named(record.stage).typed(record)
            _ = kept.parameters, kept.result
        except (KeyError, EvidenceError):  # from another version
            continue
        yield kept
