"""The CPU plugin's kernel for 4- and 8-bit weights against plain arithmetic and vLLM's own.

On a CPU without AVX-512 vLLM has none, so there quality gates of 4-bit variants depend on it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.environments.environment import Environment, ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from prepare.hardware import CPU_FEATURES_VARIABLE, cpu_features
from recipes.accelerator import Accelerator
from recipes.catalog import load_profile

SCRIPT = Path(__file__).with_name("wna16_comparison.py")
STOCK = "CPUWNA16LinearKernel"

# The first test may have to build the environment.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]


@pytest.fixture(scope="module")
def serving() -> Environment:
    return ensure("serve", Accelerator.CPU, load_settings(), NullProgress())


def answer_of(serving: Environment, features: str | None) -> dict[str, Any]:
    """What the script printed; vLLM takes some 15 s to import."""
    dropped = {"VLLM_DISABLED_KERNELS", CPU_FEATURES_VARIABLE}
    variables = {key: value for key, value in os.environ.items() if key not in dropped}
    answer = subprocess.run(
        [str(serving.python), "-I", str(SCRIPT)],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **variables,
            # As served: else vLLM's kernel is another one, W4A8, on a CPU with AMX.
            "VLLM_CPU_INT4_W4A8": load_profile("cpu").environment["VLLM_CPU_INT4_W4A8"],
            "VLLM_NO_USAGE_STATS": "1",
            **({CPU_FEATURES_VARIABLE: features} if features else {}),
        },
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    line = next(line for line in answer.stdout.splitlines() if line.startswith("RESULT "))
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


@pytest.fixture(scope="module")
def result(serving: Environment) -> dict[str, Any]:
    return answer_of(serving, None)


def of_type(result: dict[str, Any], name: str) -> list[Any]:
    return [found for found in result["comparisons"] if found["dtype"] == name]


def test_vllm_keeps_its_own_kernel_unless_told(result: dict[str, Any]) -> None:
    assert result["untold"] == STOCK
    assert {found["kernel"] for found in result["comparisons"]} == {"WidenedWNA16LinearKernel"}


def test_every_group_size_symmetric_or_not_in_both_layouts(result: dict[str, Any]) -> None:
    kinds = {tuple(found["case"][2:5]) for found in result["comparisons"]}
    assert kinds == {
        (group, zeros, layout)
        for group in (32, 64, 128, -1)
        for zeros in (True, False)
        for layout in ("rows", "columns")
    }


def test_same_numbers_as_plain_arithmetic_in_float32(result: dict[str, Any]) -> None:
    found = of_type(result, "torch.float32")
    assert len(found) == 20
    for each in found:
        assert each["largest"] > 1, "a comparison of zeros says nothing"
        assert each["off"] <= 1e-6 * each["largest"], each


def test_bfloat16_is_off_by_its_rounding_alone(result: dict[str, Any]) -> None:
    found = of_type(result, "torch.bfloat16")
    assert len(found) == 20
    for each in found:
        assert each["off"] <= each["rounding"] / 4, each


def test_same_numbers_as_vllms_own_within_a_step_of_bfloat16(result: dict[str, Any]) -> None:
    if "avx512f" not in cpu_features(environ={}):
        pytest.skip("vLLM has no kernel to compare with on this CPU")
    compared = [each for each in of_type(result, "torch.bfloat16") if each["off_stock"] is not None]
    assert len(compared) == 16
    for each in compared:
        # A sum in another order may fall to the other side of a step: 1/128 of the number.
        assert each["off_stock"] <= each["largest"] / 128, each
        assert each["off"] <= 1.01 * each["stock_off"] + each["largest"] / 1024, each


def test_it_is_there_where_vllms_library_has_no_kernel(serving: Environment) -> None:
    """As on a CPU with AVX2 only: vLLM then loads its other library."""
    result = answer_of(serving, "avx2")
    assert result["comparisons"]
    assert all(found["off_stock"] is None for found in result["comparisons"])
    for each in of_type(result, "torch.float32"):
        assert each["off"] <= 1e-6 * each["largest"], each
