"""Validates a run record's command options, which are untrusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError

from pipeline.core.record import CheckedCopyModel

Names = tuple[str, ...]
RunKind = Literal["model", "gate", "recheck", "tune"]


class CommandOptions(CheckedCopyModel):
    """Options that readers use, all optional; commands add others."""

    model_config = ConfigDict(frozen=True, extra="allow")

    checkpoint: str | None = None
    recipes: Names | None = None
    variants: Names | None = None
    served_variants: Names | None = None
    profile: str | None = None
    policy: str | None = None
    workload: str | None = None
    candidates: str | None = None
    version: str | None = None
    name: str | None = None
    registry: str | None = None
    eval_data: str | None = None
    source: str | None = None
    weights: str | None = None
    tokenizer: str | None = None
    deployment_id: str | None = None
    api: str | None = None
    family: str | None = None
    baseline: str | None = None
    candidate: str | None = None
    baseline_model: str | None = None
    candidate_model: str | None = None
    max_length: int | None = None
    gpus_a_copy: int | None = None


class RecordedCommand(CommandOptions):
    """The options and their resolved values."""

    requested: CommandOptions | None = None  # as the user wrote them
    recheck: str | None = None
    force: bool | None = None
    remeasured: Names | None = None
    attempted: Names | None = None
    changed: Names | None = None
    trust_remote_code: bool | None = None
    promote: bool | None = None
    cpu_overrides: dict[str, str] | None = None
    kv_cache_note: str | None = None
    speculation: str | None = None
    asked_by: str | None = None
    ablate: bool | None = None


def read_command(command: Mapping[str, Any]) -> RecordedCommand:
    """Parse a run's options; raises ValueError with the name of an option of the wrong type."""
    try:
        return RecordedCommand.model_validate(dict(command))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ascii(".".join(map(str, first["loc"])))[1:-1]
        raise ValueError(f"command.{key}: {first['msg']}") from error
