"""Facts about lm-eval's common tasks for planning; numbers of questions are estimates."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from pydantic import Field

from pipeline.core.record import SparseRecord

_FILE = Path(__file__).parents[1] / "data" / "lm_eval_tasks.json"


class KnownTask(SparseRecord):
    """One task."""

    questions: int | None = Field(
        None, description="estimated number in the split that lm-eval asks"
    )
    cluster: str | None = Field(None, description="field that several questions have in common")


def known_task(name: str) -> KnownTask:
    """Return the facts about a task; empty if it is not listed."""
    return known_tasks().get(name, KnownTask())


@cache
def known_tasks() -> dict[str, KnownTask]:
    """Return all listed tasks by name."""
    listed = json.loads(_FILE.read_text(encoding="utf-8"))
    return {name: KnownTask.model_validate(facts) for name, facts in listed.items()}
