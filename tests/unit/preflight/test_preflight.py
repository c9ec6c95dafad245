"""What a run is refused for before it begins: published models on machines made up for it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published_models import (
    DEEPSEEK_V3,
    LLAMA_3_8B,
    LLAMA_3_70B,
    LLAMA_3_405B,
    MIXTRAL_8X22B,
    Shapes,
    deepseek,
    dense,
    mixtral,
    source,
)

from pipeline.core.errors import CheckpointError, PreflightError, PrepareError, UsageError
from pipeline.core.gpus import VisibleGpu
from pipeline.inspection.unquantized_modules import ignore_list
from pipeline.plan.machine import Machine
from pipeline.preflight.preflight import PreflightInput, refuse
from recipes import catalog
from recipes.engines.vllm_formats import find_obstacle
from recipes.schema import Recipe

LARGE = Machine(memory_bytes=10**13, free_disk_bytes=10**13)
H100 = replace(LARGE, gpu="NVIDIA H100 80GB HBM3", gpus=1, compute_capability=9.0)
FP8, AWQ = "fp8-dynamic", "awq-w4a16"


def preflight(
    config: dict[str, Any] = LLAMA_3_8B,
    machine: Machine = LARGE,
    *,
    profile: str = "cpu",
    recipes: tuple[str, ...] = (FP8, AWQ),
    shapes: Shapes | None = None,
    **arguments: Any,
) -> PreflightInput:
    serving = catalog.load_profile(profile)
    serving = serving.model_copy(
        update={"engine_arguments": {**serving.engine_arguments, **arguments}}
    )
    return PreflightInput(
        source=source(config, dense(config) if shapes is None else shapes),
        recipes=tuple(catalog.load_recipe(name) for name in recipes),
        baseline=catalog.load_recipe("baseline"),
        profile=serving,
        machine=machine,
        store=Path("store"),
    )


def told(faults: list[PrepareError]) -> str:
    for fault in faults:
        assert fault.where
        assert fault.hint
    return "\n".join(f"{fault.message} | {fault.hint}" for fault in faults)


class TestNothingWrong:
    @pytest.mark.parametrize(("profile", "machine"), [("cpu", LARGE), ("h100", H100)])
    def test_a_large_machine(self, profile: str, machine: Machine) -> None:
        found = preflight(machine=machine, profile=profile)
        assert found.faults() == []
        assert found.disk_fault(()) == []
        assert found.notes() == []

    def test_of_a_very_large_model_in_seconds(self) -> None:
        """46,000 tensors: more than there are in any published model but the very largest."""
        shapes = deepseek(DEEPSEEK_V3)
        assert len(shapes) > 45_000
        found = preflight(DEEPSEEK_V3, H100, profile="h100", shapes=shapes)
        started = time.process_time()
        assert "cannot be served on one h100" in told(found.faults())
        seconds = time.process_time() - started
        assert seconds < 10

    @pytest.mark.parametrize("profile", ["cpu", "h100"])
    def test_every_recipe_looks_at_the_tensors_once(
        self, profile: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []

        def counted(*arguments: Any, **settings: Any) -> list[str]:
            asked.append(arguments)
            return ignore_list(*arguments, **settings)

        monkeypatch.setattr("pipeline.inspection.variant_size.ignore_list", counted)
        found = preflight(machine=H100, profile=profile)
        assert found.faults() == found.disk_fault(()) == []
        assert len(asked) == 2

    def test_of_a_usual_model_in_under_a_second(self) -> None:
        found = preflight(LLAMA_3_70B, H100, profile="h100")
        started = time.process_time()
        found.faults()
        assert time.process_time() - started < 1


def test_layers_that_autoawq_would_lose() -> None:
    """A layer after the last is for multi-token prediction, and transformers does not load it."""
    last = {"model.layers.32.eh_proj.weight": (4096, 8192)}
    shapes = dense(LLAMA_3_8B) | last
    faults = preflight(shapes=shapes, recipes=(FP8, AWQ, "autoawq-w4a16")).faults()
    assert len(faults) == 1
    assert f"'autoawq-w4a16' does not suit this checkpoint: '{next(iter(last))}'" in told(faults)


class TestCheckpoint:
    @pytest.mark.parametrize("name", ["BertModel", "T5ForConditionalGeneration"])
    def test_an_architecture_that_does_not_generate(self, name: str) -> None:
        config = LLAMA_3_8B | {"architectures": [name]}
        (fault,) = preflight(config).faults()
        assert isinstance(fault, CheckpointError)
        assert f"'{name}' is not supported" in fault.message

    def test_a_model_of_images_is_supported(self) -> None:
        name = {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}}
        assert preflight(LLAMA_3_8B | name).faults() == []

    @pytest.mark.parametrize("level", ["top", "text_config"])
    def test_quantized_weights_that_cannot_be_converted(self, level: str) -> None:
        method = {"quantization_config": {"quant_method": "aqlm"}}
        config = LLAMA_3_8B | (method if level == "top" else {"text_config": method})
        found = preflight(config)
        fault, other = found.faults()
        assert isinstance(fault, CheckpointError)
        assert "has quantized weights" in fault.message
        made = frozenset(recipe.name for recipe in found.recipes)
        assert replace(found, made=made).faults()[0].message == other.message

    def test_quantized_weights_that_are_converted(self) -> None:
        blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
        assert preflight(LLAMA_3_8B | {"quantization_config": blocks}).faults() == []

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "no loader"),
            ({"quant_method": "AWQ", "bits": 4, "version": "gemv"}, "'gemm'"),
            ({"quant_method": "awq", "bits": 4, "zero_point": False}, "zero points"),
            ({"quant_method": "gptq", "bits": 3, "sym": True, "group_size": 128}, "4 or 8 bits"),
            ({"quant_method": "gptq", "bits": 4, "sym": False, "group_size": 128}, "symmetric"),
            (
                {"quant_method": "gptq", "bits": 4, "desc_act": True, "group_size": 128},
                "order of activations",
            ),
            ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "not 'MXFP8'"),
            ({"quant_method": "modelopt"}, "not ''"),
        ],
    )
    def test_weights_that_the_engine_does_not_load(
        self, config: dict[str, Any], words: str
    ) -> None:
        found = preflight()
        found = replace(found, made=frozenset(recipe.name for recipe in found.recipes))
        assert found.faults() == []
        other = replace(found.source, config={**found.source.config, "quantization_config": config})
        (fault,) = replace(found, adopted={AWQ: other}).faults()
        assert isinstance(fault, PreflightError)
        assert words in fault.message
        assert fault.message.startswith(f"'{AWQ}' cannot be served")
        assert "prepare gate" in fault.hint
        assert any(words in each.message for each in replace(found, source=other).faults())

    @pytest.mark.parametrize(
        "config",
        [
            {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True},
            {"quant_method": "gptq", "bits": 8, "sym": True, "desc_act": True, "group_size": -1},
            {"quant_method": "fp8", "activation_scheme": "static"},
            {"quant_method": "modelopt", "quant_algo": "nvfp4"},
            {"quant_method": "compressed-tensors"},
            {"quant_method": 7},
        ],
    )
    def test_weights_that_the_engine_loads_or_does_not_know(self, config: dict[str, Any]) -> None:
        assert not find_obstacle(config, "cpu")
        assert not find_obstacle(config, "cuda")

    def test_quantized_by_another_quantizers_file(self) -> None:
        found = preflight()
        source = replace(found.source, names=frozenset({"config.json", "hf_quant_config.json"}))
        (fault,) = replace(found, source=source).faults()
        assert "ModelOpt" in fault.message

    def test_code_that_nobody_trusts(self) -> None:
        own = {"model_type": "own", "auto_map": {"AutoModel": "modeling_own.Own"}}
        found = preflight(LLAMA_3_8B | own)
        (fault,) = found.faults()
        assert "its own Python code" in fault.message
        assert "--trust-remote-code" in fault.hint
        assert replace(found, trust_remote_code=True).faults() == []

    def test_a_shape_that_is_not_told_is_no_fault_and_is_said(self) -> None:
        config = {key: value for key, value in LLAMA_3_8B.items() if key != "vocab_size"}
        found = preflight(config, replace(LARGE, memory_bytes=1), shapes=dense(LLAMA_3_8B))
        assert found.faults() == []
        assert "memory is not checked" in found.notes()[0]


class TestGroups:
    def recipe(self, **changes: Any) -> Recipe:
        recipe = catalog.load_recipe(AWQ)
        changed = recipe.quantization.model_copy(update=changes)
        return recipe.model_copy(update={"quantization": changed})

    def test_columns_that_no_size_divides(self) -> None:
        config = LLAMA_3_8B | {"hidden_size": 4176, "num_attention_heads": 36}  # 4176 = 16 x 261
        found = preflight(config)
        words = told(found.faults())
        assert "none of its group sizes divides layers of 4176 columns" in words
        assert "'awq-w4a16' does not suit this checkpoint" in words
        assert "'fp8-dynamic'" not in words

    def test_weights_that_are_there_have_their_groups(self) -> None:
        found = preflight(LLAMA_3_8B | {"hidden_size": 4176, "num_attention_heads": 36})
        assert replace(found, made=frozenset({AWQ})).faults() == []

    def test_what_a_smaller_size_divides(self) -> None:
        config = LLAMA_3_8B | {"hidden_size": 4128, "num_attention_heads": 43}  # 32 x 129
        config |= {"num_key_value_heads": 43}
        assert preflight(config).faults() == []
        only = replace(preflight(config), recipes=(self.recipe(smaller_group_sizes=[]),))
        assert "layers of 4128" in told(only.faults())

    def test_a_preset_with_groups_of_its_own(self) -> None:
        recipe = catalog.load_recipe(FP8)
        blocks = recipe.quantization.model_copy(update={"scheme": "FP8_BLOCK"})
        changed = recipe.model_copy(update={"name": "blocks", "quantization": blocks})
        config = LLAMA_3_8B | {"hidden_size": 4128, "num_attention_heads": 43}
        config |= {"num_key_value_heads": 43}
        words = told(replace(preflight(config), recipes=(changed,)).faults())
        assert "'blocks' does not suit this checkpoint" in words
        assert "divides layers of 4128 columns" in words


class TestGpu:
    def test_fp8_on_a_gpu_without_it(self) -> None:
        old = replace(H100, gpu="NVIDIA A100-SXM4-80GB", compute_capability=8.0)
        (fault,) = preflight(machine=old, profile="h100").faults()
        assert isinstance(fault, UsageError)
        assert fault.message == (
            "'fp8-dynamic' needs a GPU of compute capability 8.9, this one has 8.0"
        )
        assert preflight(machine=old, profile="h100", recipes=(AWQ,)).faults() == []
        assert preflight(machine=old, profile="cpu").faults() == []

    def test_a_driver_older_than_the_locks_cuda(self) -> None:
        old = replace(H100, driver="535.183.06")
        (fault,) = preflight(machine=old, profile="h100").faults()
        assert isinstance(fault, PreflightError)
        assert "535.183.06" in fault.message
        assert "580" in fault.message
        assert preflight(machine=replace(H100, driver="580.65"), profile="h100").faults() == []
        assert preflight(machine=old, profile="cpu").faults() == []

    def test_none_at_all(self) -> None:
        words = told(preflight(profile="h100").faults())
        assert "serves on 1 NVIDIA GPU, and none is found here" in words
        assert "cpu" in words

    def test_fewer_than_one_copy_takes(self) -> None:
        found = preflight(machine=H100, profile="h100", **{"tensor-parallel-size": 4})
        assert "serves on 4 NVIDIA GPUs, and this machine has 1" in told(found.faults())

    def test_those_that_cuda_does_not_show_do_not_count(self) -> None:
        shown = replace(H100, visible_devices="3")
        found = preflight(machine=shown, profile="h100", **{"tensor-parallel-size": 4})
        (fault,) = found.faults()
        assert isinstance(fault, UsageError)
        assert fault.where == "--profile h100, key engine_arguments.tensor-parallel-size"
        assert "this machine has 1 that CUDA_VISIBLE_DEVICES=3 shows" in fault.message
        assert "let CUDA_VISIBLE_DEVICES show 4" in fault.hint

    def test_all_that_divides_a_server_counts(self) -> None:
        split = {"tensor-parallel-size": 2, "pipeline-parallel-size": 2}
        found = preflight(machine=replace(H100, gpus=2), profile="h100", **split)
        assert "serves on 4 NVIDIA GPUs, and this machine has 2" in told(found.faults())

    def test_layers_in_stages_are_not_refused_for_a_memory_that_nobody_estimates(self) -> None:
        staged = {"tensor-parallel-size": 1, "pipeline-parallel-size": 4}
        machine = replace(H100, gpus=4)
        found = preflight(LLAMA_3_70B, machine, profile="h100", recipes=(AWQ,), **staged)
        assert found.faults() == []
        assert any("memory is not checked" in note for note in found.notes())

    def test_memory_for_the_baseline(self) -> None:
        """140 GB do not go on one H100; at 8 and 4 bits they do, and the baseline is needed."""
        found = preflight(LLAMA_3_70B, H100, profile="h100", recipes=(AWQ,))
        (fault,) = found.faults()
        assert isinstance(fault, PreflightError)
        assert "'baseline' cannot be served on one h100" in fault.message
        assert fault.hint == "--gpus-a-copy 2"

    @pytest.mark.parametrize(
        ("name", "memory", "known"),
        [
            ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "", True),
            ("NVIDIA X9", "40960 MiB", True),
            ("NVIDIA X9", "[N/A]", False),
        ],
    )
    def test_memory_of_slices_and_of_gpus_without_a_file(
        self, name: str, memory: str, known: bool
    ) -> None:
        gib = VisibleGpu(name, "GPU-0", memory=memory).memory_gib
        assert gib == (40 if known else None)
        found = preflight(
            LLAMA_3_70B, replace(H100, gpu=name, gpu_memory_gib=gib), profile="h100", recipes=()
        )
        assert [name in fault.message for fault in found.faults()] == [True] * known
        assert any("not checked" in note for note in found.notes()) != known

    def test_how_much_memory_quantizing_is_to_be_given(self) -> None:
        found = preflight(LLAMA_3_70B, H100, profile="h100", recipes=(AWQ, FP8))
        reserved = found.memory_to_make()
        assert reserved.keys() == {
            (s, n) for s in ("quantize", "check_weights") for n in (AWQ, FP8)
        }
        assert reserved["quantize", AWQ] > 140e9  # calibrated with all weights in memory
        assert reserved["check_weights", AWQ] > 140e9  # runs source and variant
        assert reserved["check_weights", FP8] < 2e9

    def test_a_mixture_is_refused_only_where_it_surely_does_not_fit(self) -> None:
        """The plan's upper estimate of its reserve leaves it no cache; the lower one does."""
        four, model = replace(H100, gpus=4), mixtral(MIXTRAL_8X22B)
        wanted = {"tensor-parallel-size": 4, "max-num-seqs": 8192, "max-model-len": 4096}
        found = preflight(MIXTRAL_8X22B, four, profile="h100", recipes=(), shapes=model, **wanted)
        assert found.faults() == []

    def test_a_variant_too_large_may_be_left_out(self) -> None:
        """In 16 bits and in 8 it does not fit; the recipe that would is in the run already."""
        found = preflight(LLAMA_3_405B, H100, profile="h100", recipes=(FP8, AWQ))
        hints = {fault.message.split("'")[1]: fault.hint for fault in found.faults()}
        assert set(hints) == {"baseline", FP8, AWQ}
        for name, hint in hints.items():
            assert "recipe fp8" not in hint
            assert "recipe awq" not in hint
            assert "--gpu " not in hint
            assert ("leave the recipe out" in hint) is (name != "baseline")

    def test_memory_with_tensor_parallelism(self) -> None:
        four = replace(H100, gpus=4)
        spread = {"tensor-parallel-size": 4}
        assert preflight(LLAMA_3_70B, four, profile="h100", **spread).faults() == []

    def test_a_gpu_that_no_file_describes(self) -> None:
        other = replace(H100, gpu="NVIDIA H100 80GB HBM3 MIG 3g.40gb")
        found = preflight(LLAMA_3_70B, other, profile="h100")
        assert found.faults() == []
        assert (
            "no file in recipes/gpus describes NVIDIA H100 80GB HBM3 MIG 3g.40gb"
            in found.notes()[0]
        )


class TestMemory:
    def test_a_calibrated_recipe_loads_the_model(self) -> None:
        found = preflight(machine=replace(LARGE, memory_bytes=16 * 10**9), recipes=(AWQ,))
        words = told(found.faults())
        assert "the stage 'quantize' of 'awq-w4a16' needs about 18." in words
        assert "this machine has 16.0 GB" in words

    def test_a_cpu_serves_from_it(self) -> None:
        found = preflight(machine=replace(LARGE, memory_bytes=19 * 10**9), recipes=(AWQ,))
        words = told(found.faults())
        assert "the stage 'serve' of 'baseline'" in words
        assert "quantize" not in words

    def test_two_servers_at_once_take_both(self) -> None:
        found = preflight(machine=replace(LARGE, memory_bytes=25 * 10**9), recipes=(AWQ,))
        assert found.faults() == []
        (fault,) = found.pair_faults()
        assert f"the servers of '{AWQ}' and of the baseline need about 2" in told([fault])
        assert preflight(recipes=(AWQ,)).pair_faults() == []
        assert preflight(machine=H100, profile="h100").pair_faults() == []

    def test_weights_that_are_there_are_not_made_again(self) -> None:
        machine = replace(H100, memory_bytes=2 * 10**9)
        found = preflight(machine=machine, profile="h100")
        assert len(found.faults()) == 3
        words = told(replace(found, made=frozenset({FP8})).faults())
        assert f"the stage 'quantize' of '{AWQ}'" in words
        assert FP8 not in words
        (left,) = replace(found, made=frozenset({FP8, AWQ})).faults()
        assert f"the stage 'check_weights' of '{AWQ}'" in str(left)

    def test_weights_that_are_there_are_served_all_the_same(self) -> None:
        found = preflight(machine=replace(LARGE, memory_bytes=10**9), recipes=(AWQ,))
        words = told(replace(found, made=frozenset({AWQ})).faults())
        assert "the stage 'serve' of 'baseline'" in words
        assert f"the stage 'serve' of '{AWQ}'" in words
        assert "quantize" not in words

    def test_a_gpu_does_not(self) -> None:
        machine = replace(H100, memory_bytes=20 * 10**9)
        assert preflight(machine=machine, profile="h100", recipes=(AWQ,)).faults() == []


class TestDisk:
    def test_all_variants_together(self) -> None:
        found = preflight(machine=replace(LARGE, free_disk_bytes=14 * 10**9))
        (fault,) = found.disk_fault(())
        assert "the run needs 14.9 GB of disk (fp8-dynamic 9.1, awq-w4a16 5.8)" in fault.message
        assert "14.0 GB are free" in fault.message
        assert fault.where == "store"
        assert "--store" in fault.hint

    def test_what_is_in_the_store_needs_none(self) -> None:
        found = preflight(machine=replace(LARGE, free_disk_bytes=14 * 10**9))
        assert found.disk_fault({FP8}) == []
        assert found.disk_fault({AWQ}) == []

    def test_what_is_made_elsewhere_needs_none(self) -> None:
        found = preflight(machine=replace(LARGE, free_disk_bytes=5 * 10**9))
        made = replace(found, made=frozenset({FP8}))
        assert "needs 5.8 GB of disk (awq-w4a16 5.8)" in told(made.disk_fault(()))
        assert made.disk_fault({AWQ}) == []

    def test_the_download_counts(self) -> None:
        found = preflight(machine=replace(LARGE, free_disk_bytes=20 * 10**9))
        assert found.disk_fault(()) == []
        (fault,) = found.disk_fault((), 16_060_522_496)
        assert (
            "needs 31.0 GB of disk (download 16.1, fp8-dynamic 9.1, awq-w4a16 5.8)" in fault.message
        )


class TestRefuse:
    def test_nothing(self) -> None:
        refuse([])

    def test_one_is_raised_as_it_is(self) -> None:
        fault = UsageError("it is too old", where="--recipe x", hint="leave it out")
        with pytest.raises(UsageError) as caught:
            refuse([fault])
        assert caught.value is fault

    def test_several_are_listed_together(self) -> None:
        old = replace(H100, gpu="NVIDIA A100-SXM4-40GB", compute_capability=8.0, memory_bytes=10**9)
        faults = preflight(LLAMA_3_70B, old, profile="h100").faults()
        assert len(faults) > 3
        with pytest.raises(PreflightError) as caught:
            refuse(faults)
        words = str(caught.value)
        assert words.startswith(f"{len(faults)} things would make this run fail\n  1. ")
        for fault in faults:
            assert f"{fault.message}; where: {fault.where}; hint: {fault.hint}" in words
