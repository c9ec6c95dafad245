"""Where two servers are up on the GPUs of one while their speeds are compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loose_stage import stage_spec
from published_models import LLAMA_3_8B, LLAMA_3_70B, MISTRAL_7B_V01, inspected
from small_checkpoint import checkpoint_files, write_files
from some_node import node_of

from pipeline.checkpoint.folder import Checkpoint
from pipeline.core.hardware import Hardware
from pipeline.plan.server_mode import fits_twice, in_mode, with_server_mode
from pipeline.plan.speed_plan import Sides, SpeedSide, find_claims
from pipeline.serving.served_model import ServedModel
from pipeline.serving.serving_arguments import ServingArguments, under_load
from pipeline.stages.speed import SPEED
from recipes.catalog import gpu_of_driver, load_policy, load_profile
from recipes.policy import Policy
from recipes.schema import ServingProfile

H100, H200, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA L40S"
DEFAULT = load_policy("default")
LONG = LLAMA_3_8B | {"max_position_embeddings": 131072}


def served(**arguments: Any) -> ServingProfile:
    h100 = load_profile("h100")
    return h100.model_copy(
        update={"engine_arguments": {**h100.engine_arguments, **arguments}, "server_mode": "auto"}
    )


def loaded(**load: int) -> Policy:
    """The default policy with other traffic."""
    traffic = {"kind": "random", "input_tokens": 1024, "output_tokens": 256, **load}
    at_once = traffic.pop("at_once", 64)
    speed = {
        "ratio": {"min_ratio": 1.0, "workloads": ["mine"]},
        "workloads": {"mine": {**traffic, "arrivals": {"concurrency": at_once}, "seconds": 30}},
    }
    return Policy.model_validate({**DEFAULT.model_dump(), "speed": speed})


@pytest.mark.parametrize(
    ("model", "gpu", "arguments", "policy", "fits"),
    [
        (LLAMA_3_8B, H100, {}, DEFAULT, True),
        (LONG, H100, {}, DEFAULT, True),  # one sequence of 131,072 tokens is 16 GiB
        (MISTRAL_7B_V01, H100, {}, DEFAULT, True),
        (LLAMA_3_70B, H100, {}, DEFAULT, False),
        (LLAMA_3_70B, H200, {"tensor-parallel-size": 4}, DEFAULT, True),
        (LLAMA_3_8B, L40S, {}, DEFAULT, False),
        (LLAMA_3_8B, "NVIDIA of no data file", {}, DEFAULT, False),
        (LLAMA_3_8B, H100, {"gpu-memory-utilization": 0.5}, DEFAULT, False),
        (LLAMA_3_8B, H100, {}, loaded(at_once=64), True),
        (LLAMA_3_8B, H100, {}, loaded(at_once=256), False),
        (LLAMA_3_8B, H200, {}, loaded(at_once=256), True),
    ],
)
def test_both_weights_and_every_request_fit(
    model: dict[str, Any], gpu: str, arguments: dict[str, Any], policy: Policy, fits: bool
) -> None:
    known = gpu_of_driver(gpu)
    memory = known.memory_gib if known else None
    longest = model["max_position_embeddings"]
    found = fits_twice(served(**arguments), policy, inspected(model), longest, memory)
    assert found is fits


def test_a_model_whose_cache_is_not_known_is_served_in_turn() -> None:
    unknown = inspected(LLAMA_3_8B | {"compress_ratios": [4]})
    assert unknown.cache.unknown
    assert not fits_twice(served(), DEFAULT, unknown, 8192, 140.0)


@pytest.mark.parametrize(
    ("shape", "mode", "words"),
    [(LLAMA_3_8B, "concurrent", "46 % of the memory each"), ({}, "interleaved", "")],
    ids=["fits twice", "size not known"],
)
def test_the_report_names_what_was_not_kept_quiet(
    tmp_path: Path, shape: dict[str, Any], mode: str, words: str
) -> None:
    files = checkpoint_files()
    given = {**json.loads(files["config.json"]), **shape}
    write_files(tmp_path, files | {"config.json": json.dumps(given).encode()})
    checkpoint = Checkpoint.model_construct(path=tmp_path, max_position_embeddings=128)
    node = node_of({"accelerator": "cuda", "gpu": H100})
    found = with_server_mode(served(), DEFAULT, checkpoint, node)
    assert found.server_mode == mode
    assert found.speed_note is not None
    assert words in found.speed_note
    assert found.speed_note.endswith("were not kept quiet")
    assert with_server_mode(found, DEFAULT, checkpoint, node) == found
    cpu = load_profile("cpu")
    assert with_server_mode(cpu, DEFAULT, checkpoint, node) == cpu


@pytest.mark.parametrize(
    ("gpus", "number", "mode"),
    [
        ([H100], 1, "interleaved"),
        ([H100] * 2, 1, "swapped"),
        ([H100, H200], 1, "interleaved"),
        ([H100] * 3, 2, "interleaved"),
        ([H100] * 4, 2, "swapped"),
    ],
)
def test_two_that_do_not_fit_on_one_gpu_have_equal_gpus_of_their_own(
    tmp_path: Path, gpus: list[str], number: int, mode: str
) -> None:
    node = node_of({"accelerator": "cuda", "gpu": H100})
    there = tuple(replace(node.gpus[0], name=name) for name in gpus)
    profile = served(**{"tensor-parallel-size": number})
    # Its size is not known.
    checkpoint = Checkpoint.model_construct(path=tmp_path, max_position_embeddings=128)
    node = node.model_copy(update={"gpus": there})
    found = with_server_mode(profile, DEFAULT, checkpoint, node)
    assert found.server_mode == mode
    without = DEFAULT.model_copy(update={"speed": None})
    assert with_server_mode(profile, without, checkpoint, node).server_mode == "interleaved"
    slices = tuple(replace(gpu, is_slice=True) for gpu in there)
    node = node.model_copy(update={"gpus": slices})
    assert with_server_mode(profile, DEFAULT, checkpoint, node).server_mode == "interleaved"


@pytest.mark.parametrize(("given", "half"), [({}, 0.46), ({"gpu-memory-utilization": 0.8}, 0.4)])
def test_each_side_has_the_same_half_of_the_memory(given: dict[str, Any], half: float) -> None:
    for is_baseline in (True, False):
        alone = ServingArguments.of(served(**given), is_baseline=is_baseline)
        found = under_load(alone, "cuda", "concurrent")
        assert found.engine_arguments == {**alone.engine_arguments, "gpu-memory-utilization": half}
        assert under_load(alone, "cuda", "interleaved") == alone
        assert under_load(alone, "cpu", "concurrent") == alone
        assert under_load(alone, None, "concurrent") == alone


def test_limits_are_measured_with_all_of_the_memory(tmp_path: Path) -> None:
    """A candidate has a start for each round, and the GPU for itself."""
    speed = {
        "ratio": {"min_ratio": 1.0, "workloads": ["chat"]},
        "slo": [{"workload": "chat", "rate": 4.0, "limits": {"ttft_ms_p50": 900.0}}],
    }
    mine = Policy.model_validate({**DEFAULT.model_dump(), "speed": speed})
    profile = in_mode(served(), "concurrent")
    model = ServedModel(
        serving=ServingArguments.of(profile, is_baseline=False),
        hardware=Hardware(accelerator="cuda", gpu=H100),
    )
    side = SpeedSide("fp8", model, stage_spec("coherence", "fp8", {}, {}, {}, tmp_path))
    both = Sides(side, side, tokenizer=tmp_path, environment="e", machine="m")
    shares = {
        claim.gate: SPEED.parameters_of(both.stage(claim))
        .sides["candidate"]
        .serving.engine_arguments.get("gpu-memory-utilization")
        for claim in find_claims(mine, profile)
    }
    assert shares == {"ratio.chat": 0.46, "slo.0": None}
