"""What the real engine says of its KV cache, and servers that have another than they should."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from port_server import served
from scaled_cache import with_scales

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from prepare.errors import ServingError
from prepare.events import NullProgress
from prepare.hardware import cpu_features
from recipes.accelerator import Accelerator
from recipes.engines.vllm import CPU_CACHES
from recipes.schema import ServingProfile

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.of_everything,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "avx512f" not in cpu_features(), reason="vLLM has no FP8 KV cache on a CPU without AVX-512"
    ),
]
FP8 = {"kv-cache-dtype": "fp8"}


def test_scales_that_the_engine_takes_are_told(
    demo_model: Path, cpu_profile: ServingProfile, tmp_path: Path
) -> None:
    model = with_scales(demo_model, tmp_path / "model")
    # `auto` is the checkpoint's own scheme.
    with served(model, cpu_profile, tmp_path / "log", changes={"kv-cache-dtype": "auto"}) as found:
        facts = found.facts()
    assert facts["kv_cache"] == "fp8"
    assert facts["kv_scales"] == "keys 0.0625 to 0.0625 and values 0.03125 to 0.03125"
    assert facts["attention"] == "CPU_ATTN"


def test_scales_that_the_engine_ignores_in_one_layer_are_named(
    demo_model: Path, cpu_profile: ServingProfile, tmp_path: Path
) -> None:
    model = with_scales(demo_model, tmp_path / "model", ignored={3})
    with (
        pytest.raises(ServingError, match=r"model\.layers\.3\.self_attn\.kv_scale") as caught,
        served(model, cpu_profile, tmp_path / "log", changes=FP8),
    ):
        pass
    assert caught.value.where == str(model)


def test_an_fp8_cache_that_no_layer_has_is_refused(
    demo_model: Path, cpu_profile: ServingProfile, tmp_path: Path
) -> None:
    layers = [str(number) for number in range(30)]
    skipped = {**FP8, "kv-cache-dtype-skip-layers": layers}
    with (
        pytest.raises(ServingError, match="bfloat16") as caught,
        served(demo_model, cpu_profile, tmp_path / "log", changes=skipped),
    ):
        pass
    assert "kv_cache_dtype" in caught.value.where


def test_the_formats_that_the_plan_takes_on_a_cpu_are_the_engines() -> None:
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    told = "from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend as own; "
    told += "print(*own.supported_kv_cache_dtypes)"
    done = subprocess.run(
        [str(python), "-c", told], capture_output=True, text=True, check=True, timeout=300
    )
    assert tuple(done.stdout.split("\n")[-2].split()) == CPU_CACHES
