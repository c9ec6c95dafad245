"""Files that this project carries and that no key of a stage has: they change as code does."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from pipeline.stages.check_weights import CHECK_WEIGHTS
from pipeline.stages.questions import QUESTIONS
from pipeline.stages.verdict import JUDGE
from prepare.stage import Stage

ROOT = Path(__file__).parents[3]
DIGESTS_AT_REVISION = [
    (
        "recipes/calibration/general.jsonl",  # outputs are compared on its first tokens
        CHECK_WEIGHTS,
        9,
        "539e57133c316eeda775d1765507e58921ed5bb5ad5d415a7ba32b6fc72b3e63",
    ),
    (
        "eval_gates/suites/presets.yaml",
        QUESTIONS,
        10,
        "894a9c8651e43ec6be539c2cfe4d5cee034d5afa9964d0b767c278b125ae2570",
    ),
    (
        "eval_gates/data/mmlu_groups.json",
        JUDGE,
        25,
        "d699779a5d96dfde7dc047ae8febfd72e9b5047593c0f62a07f7efdfba63a655",
    ),
]


@pytest.mark.parametrize(("name", "stage", "revision", "digest"), DIGESTS_AT_REVISION)
def test_another_carried_file_raises_the_revision_of_its_stage(
    name: str, stage: Stage[Any, Any, Any], revision: int, digest: str
) -> None:
    now = hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
    assert now == digest, (
        f"{name} is another file: raise the revision of the stage '{stage.name}', which reads it, "
        "so that what was made of the earlier file is not taken; then record both here"
    )
    assert stage.revision >= revision
