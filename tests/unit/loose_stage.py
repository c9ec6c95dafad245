"""Specs of stages with parameters that no real one has, for tests that look at something else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.stages import newest_revision
from prepare.stage import StageReference, StageSpec, stage_key


def stage_spec(
    stage: str,
    variant: str,
    parameters: dict[str, Any],
    inputs: Mapping[str, StageSpec | StageReference],
    runtime: dict[str, Any],
    store: Path,
) -> StageSpec:
    """A stage with its key."""
    references = {
        role: each.as_reference() if isinstance(each, StageSpec) else each
        for role, each in inputs.items()
    }
    return StageSpec(
        stage=stage,
        variant=variant,
        key=stage_key(stage, newest_revision(stage), parameters, references),
        parameters=parameters,
        inputs=references,
        runtime=runtime,
        store=str(store),
    )
