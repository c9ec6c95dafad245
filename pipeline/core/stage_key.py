"""Keys that identify the output of a stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.core.digest import digest_json
from pipeline.core.stage_record import StageReference


def stage_key(
    stage: str, revision: int, parameters: Mapping[str, Any], inputs: Mapping[str, StageReference]
) -> str:
    """Return the digest of everything that can change a stage's output."""
    return digest_json(
        {
            "stage": stage,
            "revision": revision,
            "parameters": parameters,
            "inputs": {role: reference.key for role, reference in inputs.items()},
        }
    )
