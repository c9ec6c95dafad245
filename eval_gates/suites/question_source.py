"""Identity of a source of questions, by content."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pipeline.core.errors import EvaluationDataError, raise_as
from pipeline.core.record import SparseRecord


class QuestionSource(SparseRecord):
    """Source of questions, without its place on a machine."""

    kind: Literal["folder", "hub", "packages", "builtin", "task"]
    digest: str | None = Field(None, description="of what a folder, a file or a task's files hold")
    environment: str | None = Field(None, description="identity of the one with the packages")
    id: str | None = Field(None, description="of the dataset on the Hub")
    config: str | None = None
    split: str | None = None
    shots_split: str | None = Field(None, description="that worked examples come from")
    revision: str | None = Field(None, description="commit on the Hub")
    task: str | None = Field(None, description="of lm-eval, by its name there")
    dataset: str | None = Field(None, description="on the Hub, that a task's file names")
    humaneval: str | None = Field(None, description="environment that carries its problems, too")


def hub_rows(source: QuestionSource, split: str | None) -> list[dict[str, Any]]:
    """Return a Hub dataset's rows at the pinned revision."""
    from datasets import load_dataset

    with raise_as(
        EvaluationDataError,
        "the Hub's dataset cannot be read",
        f"{source.id}, split {split}",
        "try again, or give a folder with --eval-data",
        errors=(OSError, ValueError),
    ):
        dataset = load_dataset(source.id, source.config, split=split, revision=source.revision)
    return [dict(row) for row in dataset]
