"""The stages there are, and the keys by which their outputs are found again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.digest import digest_json
from pipeline.core.stage_record import StageReference, StageSpec

# By stage, the revision of its code: a module of pipeline/stages, one line here. Raise a number
# when that stage or its worker would write something else for the same parameters.
REVISIONS: Mapping[str, int] = {
    "demo_checkpoint": 1,
    "dry_run": 2,
    "quantize": 5,
    "adopt": 1,
    "check_weights": 4,
    "questions": 5,
    "coherence": 2,
    "evaluate": 5,
    "benchmark": 2,
    "speed": 1,
    "judge": 8,
    "evidence": 2,
    "promote": 2,
}
# Former stages, by name, with their last revision: evidence that has them still verifies.
FORMER_REVISIONS: Mapping[str, int] = {"verify": 4}  # `check_weights` of today


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
        role: spec.as_reference() if isinstance(spec, StageSpec) else spec
        for role, spec in inputs.items()
    }
    key = stage_key(stage, parameters, references)
    return StageSpec(
        stage=stage,
        variant=variant,
        key=key,
        parameters=parameters,
        inputs=references,
        runtime=runtime,
        store=str(store),
    )


def newest_revision(stage: str) -> int:
    """The last revision of a stage's code, also of a former one; 0 where there was none."""
    return REVISIONS.get(stage, FORMER_REVISIONS.get(stage, 0))


def stage_key(
    stage: str,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, StageReference],
    revision: int | None = None,
) -> str:
    """The digest of everything that can change a stage's output.

    Args:
        revision: of the stage's code; None for the one that is here.
    """
    return digest_json(
        {
            "stage": stage,
            "revision": REVISIONS[stage] if revision is None else revision,
            "parameters": parameters,
            "inputs": {role: reference.key for role, reference in inputs.items()},
        }
    )
