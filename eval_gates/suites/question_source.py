"""Where a suite's questions are read from, by what decides their content."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.record import SparseRecord


class QuestionSource(SparseRecord):
    """One source; where it lies on a machine is of no account."""

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
