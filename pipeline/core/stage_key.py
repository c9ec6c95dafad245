"""The keys by which stages' outputs are found again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.core.digest import digest_json
from pipeline.core.stage_record import StageReference


def stage_key(
    stage: str, revision: int, parameters: Mapping[str, Any], inputs: Mapping[str, StageReference]
) -> str:
    """The digest of everything that can change a stage's output.

    Args:
        stage: its name.
        revision: of the stage's code.
        parameters: its own, as plain data.
        inputs: earlier stages, by role.
    """
    return digest_json(
        {
            "stage": stage,
            "revision": revision,
            "parameters": parameters,
            "inputs": {role: reference.key for role, reference in inputs.items()},
        }
    )
