"""FP8 weights of the recipes without data, tensor by tensor, against plain arithmetic."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from recipes.accelerator import Accelerator

REFERENCE = Path(__file__).with_name("fp8_arithmetic.py")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def answer(folder: Path, **job: Any) -> dict[str, Any]:
    """Do the job in the quantize environment."""
    python = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress()).python
    spec = folder / "job.json"
    spec.write_text(json.dumps(job))
    command = [str(python), str(REFERENCE), str(spec)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_demo_model_is_cast_as_by_plain_arithmetic(demo_model: Path, tmp_path: Path) -> None:
    found = answer(
        tmp_path, source=str(demo_model), output=str(tmp_path / "output"), scheme="FP8_DYNAMIC"
    )
    assert found["facts"]["quantized_modules"] == found["checked"] == 210
    assert found["differ"] == []
    assert found["config"]["quantization_config"]["ignore"] == ["lm_head"]


@pytest.mark.parametrize(
    ("scheme", "tied", "stored_head"),
    [("FP8_DYNAMIC", False, False), ("FP8_DYNAMIC", True, True), ("FP8_BLOCK", True, False)],
)
def test_every_kind_of_row_is_cast(
    tmp_path: Path, scheme: str, tied: bool, stored_head: bool
) -> None:
    """Zeros, denormals, huge and equal values; several files; blocks of 128 that are cut."""
    found = answer(
        tmp_path,
        source=str(tmp_path / "source"),
        output=str(tmp_path / "output"),
        scheme=scheme,
        make={"tied": tied, "stored_head": stored_head},
    )
    assert found["facts"]["quantized_modules"] == found["checked"] == 14
    assert found["facts"]["shards"] > 1
    assert found["differ"] == []


def test_head_that_is_not_the_embedding_is_refused(tmp_path: Path) -> None:
    found = answer(
        tmp_path,
        source=str(tmp_path / "source"),
        output=str(tmp_path / "output"),
        scheme="FP8_DYNAMIC",
        make={"tied": True, "stored_head": True, "other_head": True},
    )
    assert found["refused"] == ["StageError", "lm_head.weight"]
