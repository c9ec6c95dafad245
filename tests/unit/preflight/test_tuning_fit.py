"""Which of the carried candidates are measured: none that changes nothing on this GPU or model."""

from __future__ import annotations

from typing import Any

import pytest
from elsewhere import H100
from published_models import LLAMA_3_8B, LLAMA_3_70B, QWEN_3_235B, dense, inspected, qwen3_moe

from pipeline.inspection.inspection import CheckpointInspection
from pipeline.plan.tuning_plan import make_defaults, make_profiled, make_screened
from pipeline.preflight.tuning_fit import misfit
from recipes.catalog import load_profile
from recipes.tuning_candidates import load_candidates

STANDARD = load_candidates("standard")
H100_NAME, A100_NAME = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def left_out(
    inspection: CheckpointInspection, gpus: int = 1, gpu: str = H100_NAME, profile: str = "h100"
) -> dict[str, str]:
    """Return the reasons by name, of candidates that could be measured on some GPU."""
    spread = load_profile(profile).spread_over(gpus, expert_parallel=False)
    defaults = make_defaults(spread, STANDARD, H100)
    found = {
        name: misfit(make_screened(name, each, defaults), defaults, inspection, gpu)
        for name, each in STANDARD.candidates.items()
        if each.accelerator == "cuda"
    }
    return {name: why for name, why in found.items() if why}


@pytest.fixture(scope="module")
def llama_8b() -> CheckpointInspection:
    return inspected(LLAMA_3_8B)


def test_nothing_equals_the_engines_default(llama_8b: CheckpointInspection) -> None:
    on_h100 = left_out(llama_8b)
    assert on_h100["step-8192"] == on_h100["sequences-1024"] == "h100 has these values by default"
    assert not {"step-4096", "graphs-1024", "graphs-2048"} & on_h100.keys()
    on_a100 = left_out(llama_8b, gpu=A100_NAME, profile="a100")
    assert not {"step-8192", "sequences-1024"} & on_a100.keys()
    assert {"step-2048", "sequences-256"} <= on_a100.keys()


def test_one_gpu_divides_nothing(llama_8b: CheckpointInspection) -> None:
    of_several = {"no-fused-all-reduce", "no-flashinfer-all-reduce", "expert-parallel"}
    assert of_several <= left_out(llama_8b).keys()
    assert of_several & left_out(inspected(LLAMA_3_70B), 4).keys() == {"expert-parallel"}
    moe = inspected(QWEN_3_235B, qwen3_moe(QWEN_3_235B))
    assert not of_several & left_out(moe, 8).keys()


def test_what_the_model_does_not_have(llama_8b: CheckpointInspection) -> None:
    model_lacks = {"mtp-1", "mtp-3", "kv-fp8-not-windows"}
    assert model_lacks <= left_out(llama_8b).keys()
    drafts = {"model.layers.32.eh_proj.weight": (4096, 8192)}
    config: dict[str, Any] = LLAMA_3_8B | {
        **{"num_nextn_predict_layers": 1, "sliding_window": 512},
        "layer_types": ["sliding_attention", "full_attention"] * 16,
    }
    model = inspected(config, dense(config) | drafts)
    assert "mtp" in model.parameters
    assert not model_lacks & left_out(model).keys()


def test_the_defaults_are_the_engines_and_not_the_profiles() -> None:
    profile = make_defaults(load_profile("h100"), STANDARD, H100).profile
    assert profile.engine_arguments == {"dtype": "auto"}
    assert profile.environment == {"PREPARE_NVCC": "1"}
    # vLLM's own backend would fetch kernels there.
    blackwell = make_defaults(load_profile("b200"), STANDARD, H100).profile
    assert blackwell.engine_arguments["attention-backend"] == "TRITON_ATTN"
    assert (
        "PREPARE_NVCC" not in make_defaults(load_profile("cpu"), STANDARD, H100).profile.environment
    )


def test_a_profile_may_list_layers() -> None:
    listed = {"kv-cache-dtype-skip-layers": ["sliding_window"]}
    profile = load_profile("h100").model_copy(update={"engine_arguments": listed})
    assert make_profiled(profile, make_defaults(profile, STANDARD, H100)).changes_outputs
