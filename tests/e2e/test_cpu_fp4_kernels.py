"""The CPU plugin's NVFP4 and MXFP4 layers against compressed-tensors, in the real environment.

Quality gates of 4-bit floats without a Blackwell GPU depend on them.
"""

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

SCRIPT = Path(__file__).with_name("fp4_comparison.py")

# The test may have to build the environment.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    serving = ensure("serve", Accelerator.CPU, load_settings(), NullProgress())
    command = [str(serving.python), "-I", str(SCRIPT)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert answer.returncode == 0, answer.stderr[-3000:]
    line = next(line for line in answer.stdout.splitlines() if line.startswith("RESULT "))
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


@pytest.mark.parametrize(
    ("scheme", "kernel"),
    [
        ("NVFP4", "WidenedNvFp4LinearKernel"),
        ("NVFP4A16", "WidenedNvFp4LinearKernel"),
        ("MXFP4", "WidenedMxFp4LinearKernel"),
    ],
)
def test_outputs_of_layers_equal_the_references(
    result: dict[str, Any], scheme: str, kernel: str
) -> None:
    found = [each for each in result["comparisons"] if each["scheme"] == scheme]
    assert len(found) == 70
    assert {each["kernel"] for each in found} == {kernel}
    assert {each["kind"] for each in found} == {0, 1, 2, 3}
    for each in found:
        assert each["off"] <= each["rounding"], each
        assert each["off_activations"] == 0, each


def test_activations_are_quantized(result: dict[str, Any]) -> None:
    """Otherwise the comparison would pass with 16-bit activations on both sides."""
    changed = {each["scheme"]: each["changed"] for each in result["comparisons"]}
    assert changed["NVFP4"] > 0.01
    assert changed["MXFP4"] > 0.01
    assert changed["NVFP4A16"] == 0
