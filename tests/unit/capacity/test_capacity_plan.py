"""What fits on which GPUs: published models on GPUs of the catalog."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from published_models import (
    DEEPSEEK_V3,
    GPT_OSS_120B,
    LLAMA_3_8B,
    LLAMA_3_70B,
    LLAMA_3_405B,
    MIXTRAL_8X22B,
    QWEN_3_235B,
    QWEN_25_72B,
    deepseek,
    dense,
    gpt_oss,
    inspected,
    mixtral,
    qwen3_moe,
    source,
)

from pipeline.capacity.fit import FitResult
from pipeline.capacity.gpu_plan import CapacityPlan, capacity_plan, divisors
from pipeline.capacity.serving_limits import ServingLimits
from pipeline.capacity.sharding import shards
from pipeline.core.errors import UsageError
from pipeline.inspection.inspection import CheckpointInspection, inspect
from recipes import catalog
from recipes.gpu import GpuType
from recipes.schema import ServingProfile

NAMES = ("fp8-dynamic", "awq-w4a16")


def planned(
    model: CheckpointInspection, gpu: str, gpus: int = 1, context: int | None = None, **profile: Any
) -> CapacityPlan:
    """With the profile that the GPU has, its engine arguments changed."""
    kind = catalog.load_gpu(gpu)
    serving = catalog.profile_for_gpu(kind.driver_name)
    if profile:
        assert serving is not None
        arguments = {**serving.engine_arguments, **profile}
        serving = serving.model_copy(update={"engine_arguments": arguments})
    recipes = [catalog.load_recipe(name) for name in NAMES]
    return capacity_plan(model, recipes, kind, gpus, profile=serving, context=context)


def fit(plan: CapacityPlan, variant: str, tensor_parallel: int = 1) -> FitResult:
    [found] = [f for f in plan.fits if (f.variant, f.tensor_parallel) == (variant, tensor_parallel)]
    return found


@pytest.fixture(scope="module")
def llama_8b() -> CheckpointInspection:
    return inspected(LLAMA_3_8B)


@pytest.fixture(scope="module")
def llama_70b() -> CheckpointInspection:
    return inspected(LLAMA_3_70B)


class TestMemory:
    def test_what_a_gpu_has_is_shared_out_whole(self, llama_8b: CheckpointInspection) -> None:
        plan = planned(llama_8b, "h100")
        usable = int(79.10 * 2**30 * 0.92)
        for each in plan.fits:
            assert each.weights_bytes + each.reserve_bytes + each.cache_bytes == pytest.approx(
                usable, abs=1
            )
        baseline, fp8 = fit(plan, "baseline"), fit(plan, "fp8-dynamic")
        assert baseline.weights_bytes == 2 * 8_030_261_248
        assert baseline.tokens == baseline.cache_bytes // (16 * 131_072) * 16
        # Half the weights leave more room, and in FP8 a token takes half of it.
        assert fp8.tokens > 2 * baseline.tokens
        assert baseline.sequences == baseline.tokens // 8192

    def test_the_reserve_grows_with_the_step_and_shrinks_with_gpus(
        self, llama_8b: CheckpointInspection
    ) -> None:
        gpu = catalog.load_gpu("h100")
        small = ServingLimits.of(gpu, None)
        assert (small.step_tokens, small.sequences) == (8192, 1024)
        reserve = small.reserve_bytes(llama_8b.shape, 1)
        # Context and graphs, and a kilobyte or so for each vocabulary entry and sequence.
        assert reserve == (2**30 // 2) + 3 * 2**30 // 4 + 1024 * 128256 * 16
        one = planned(llama_8b, "h100", 1, **{"max-num-batched-tokens": 65536})
        assert fit(one, "baseline").reserve_bytes > reserve
        two = planned(llama_8b, "h100", 2, **{"max-num-batched-tokens": 65536})
        assert fit(two, "baseline", 2).reserve_bytes < fit(two, "baseline", 1).reserve_bytes

    def test_sequences_stop_at_the_profiles_limit(self, llama_8b: CheckpointInspection) -> None:
        plan = planned(llama_8b, "h200", context=128, **{"max-num-seqs": 256})
        assert fit(plan, "fp8-dynamic").sequences == 256
        assert fit(plan, "fp8-dynamic").tokens > 256 * 128

    def test_weights_are_spread(self, llama_70b: CheckpointInspection) -> None:
        plan = planned(llama_70b, "h100", 8)
        whole = llama_70b.source.weights_bytes
        norms = 2 * llama_70b.parameters["norms"]
        for gpus in (1, 2, 4, 8):
            each = fit(plan, "baseline", gpus)
            assert each.weights_bytes == pytest.approx((whole - norms) / gpus + norms, abs=gpus)
            assert each.replicas == 8 // gpus

    def test_key_value_heads_are_never_split(self, llama_70b: CheckpointInspection) -> None:
        plan = planned(llama_70b, "h100", 16)
        projections = 80 * 2 * 1024 * 8192 * 2
        rest = 2 * (llama_70b.parameters_total - llama_70b.parameters["norms"]) - projections
        norms = 2 * llama_70b.parameters["norms"]
        assert fit(plan, "baseline", 16).weights_bytes == pytest.approx(
            rest / 16 + projections / 8 + norms, abs=16
        )

    def test_float32_weights_are_served_in_16_bits(self, llama_8b: CheckpointInspection) -> None:
        wide = inspect(source(LLAMA_3_8B, dense(LLAMA_3_8B), "F32"))
        same = fit(planned(llama_8b, "h100"), "baseline")
        assert fit(planned(wide, "h100"), "baseline").weights_bytes == same.weights_bytes

    def test_the_roof_of_one_sequence(self, llama_8b: CheckpointInspection) -> None:
        read = 2 * (8_030_261_248 - 128256 * 4096)  # one row of the embedding is nothing
        roof = fit(planned(llama_8b, "h100"), "baseline").tokens_per_s_at_most
        assert roof == pytest.approx(3350e9 / read)

    def test_a_token_reads_the_experts_it_is_sent_to(self) -> None:
        model = inspected(MIXTRAL_8X22B, mixtral(MIXTRAL_8X22B))
        plan = planned(model, "h200", 8)
        assert any("reserve is an upper estimate" in note for note in plan.notes)
        # 39 billion active parameters, as published, less the embedding's 0.2.
        assert 8 * 4800e9 / fit(plan, "baseline", 8).tokens_per_s_at_most / 2 == pytest.approx(
            39e9, rel=0.01
        )

    def test_deepseek_v3(self) -> None:
        model = inspected(DEEPSEEK_V3, deepseek(DEEPSEEK_V3))
        served = model.parameters_total - model.parameters["mtp"]
        assert served / 1e9 == pytest.approx(671, abs=0.5)  # as published
        plan = planned(model, "h200", 8, context=32768)
        # 37 billion active parameters, as published, less the embedding's 0.9.
        assert 4800e9 / fit(plan, "baseline").tokens_per_s_at_most / 2 == pytest.approx(
            37e9 - 0.93e9, rel=0.02
        )
        # The way into the latent, norms and routers are on every GPU; the rest is spread.
        everywhere = 61 * (1536 + 576) * 7168
        everywhere += sum(model.parameters[kind] for kind in ("norms", "routers"))
        assert fit(plan, "baseline", 8).weights_bytes == pytest.approx(
            2 * (everywhere + (served - everywhere) / 8), abs=8
        )
        best = plan.best("fp8-dynamic")
        assert best is not None
        assert best.tensor_parallel == 8
        # The latent is on every GPU, so more GPUs do not make a token cheaper.
        assert best.tokens == pytest.approx(best.cache_bytes / (61 * 576), rel=0.001)


GIB = 2**30


class TestReserveOfAMixture:
    """Compare the plan with public logs of vLLM on H100s: it is at most slightly below them."""

    def test_qwen3_235b_in_fp8_on_four(self) -> None:
        # vllm-project/vllm#21348: "GPU KV cache size: 178,880 tokens", utilization 0.9.
        model = inspected(QWEN_3_235B, qwen3_moe(QWEN_3_235B))
        h100 = catalog.load_gpu("h100")
        serving = with_arguments({"gpu-memory-utilization": 0.9})
        serving = serving.model_copy(update={"kv_cache_dtype": "auto"})
        recipe = catalog.load_recipe("fp8-block")  # as Qwen's own FP8 checkpoint is stored
        plan = capacity_plan(model, [recipe], h100, 4, profile=serving)
        assert 0.9 * 178_880 < fit(plan, "fp8-block", 4).tokens <= 178_880

    @pytest.mark.parametrize(
        ("utilization", "step", "had"), [(0.95, 1024, 1.71), (0.9, 8192, -2.14)]
    )
    def test_gpt_oss_120b_on_one(self, utilization: float, step: int, had: float) -> None:
        # vllm-project/vllm#27508 and #23278: "Available KV cache memory: 1.71 GiB", "-2.14 GiB".
        model = inspected(GPT_OSS_120B, gpt_oss(GPT_OSS_120B))
        wanted = {"gpu-memory-utilization": utilization, "max-num-batched-tokens": step}
        found = fit(planned(model, "h100", **wanted), "baseline")
        left = 79.10 * utilization - (found.weights_bytes + found.reserve_bytes) / GIB
        assert had - 2 < left <= had

    def test_mxfp4_experts_are_filled_up_to_whole_tiles(self) -> None:
        # The same log: "Model loading took 65.9651 GiB", Marlin.
        model = inspected(GPT_OSS_120B, gpt_oss(GPT_OSS_120B))
        found = shards(model, model.variant(catalog.load_recipe("baseline").quantization))
        loaded = found.bytes_on_gpu(1) + found.filling_bytes(1)
        assert loaded / GIB == pytest.approx(65.9651, rel=0.002)
        assert found.filling_bytes(4) > found.filling_bytes(1) / 4  # 720 of 768, not of 736
        plain = inspected(LLAMA_3_8B)
        baseline = plain.variant(catalog.load_recipe("baseline").quantization)
        assert shards(plain, baseline).filling_bytes(1) == 0

    def test_what_experts_work_in(self) -> None:
        model = inspected(
            QWEN_3_235B, {"model.layers.0.mlp.experts.0.up_proj.weight": (1536, 4096)}
        )
        limits = ServingLimits.of(catalog.load_gpu("h100"), None)
        # 8,192 tokens to 8 experts each, as wide as the residual stream, twice, in 16 bits: 1 GiB.
        assert limits.workspace_bytes(model.shape, 4) == 8192 * 8 * (4096 + 4096) * 2
        # On one GPU gate and up are narrower than it still; of Mixtral they are wider.
        assert limits.workspace_bytes(model.shape, 1) == limits.workspace_bytes(model.shape, 4)
        shape = inspected(MIXTRAL_8X22B).shape
        assert limits.workspace_bytes(shape, 1) == 8192 * 2 * (2 * 16384 + 16384) * 2

    def test_only_a_mixture_has_two_estimates(self, llama_8b: CheckpointInspection) -> None:
        limits = ServingLimits.of(catalog.load_gpu("h100"), None)
        dense_model = llama_8b.shape
        least = limits.reserve_bytes(dense_model, 1, at_least=True)
        assert limits.reserve_bytes(dense_model, 1) == least
        moe = inspected(MIXTRAL_8X22B).shape
        assert limits.reserve_bytes(moe, 1) > limits.reserve_bytes(moe, 1, at_least=True)


class TestChoice:
    def test_replicas_rather_than_tensor_parallel(self, llama_8b: CheckpointInspection) -> None:
        best = planned(llama_8b, "h100", 8).best("baseline")
        assert best is not None
        assert (best.tensor_parallel, best.replicas) == (1, 8)
        assert best.sequences_of_all == 8 * best.sequences

    @pytest.mark.parametrize(
        ("gpu", "sizes"),
        [
            ("h100", {"baseline": 4, "fp8-dynamic": 2, "awq-w4a16": 1}),
            ("h200", {"baseline": 2, "fp8-dynamic": 2, "awq-w4a16": 1}),
        ],
    )
    def test_a_70b(self, llama_70b: CheckpointInspection, gpu: str, sizes: dict[str, int]) -> None:
        plan = planned(llama_70b, gpu, 8)
        for variant, gpus in sizes.items():
            best = plan.best(variant)
            assert best is not None
            assert best.tensor_parallel == gpus

    def test_copies_that_would_starve_are_not_best(self, llama_70b: CheckpointInspection) -> None:
        plan = planned(llama_70b, "h100", 8)
        tight, best = fit(plan, "baseline", 2), fit(plan, "baseline", 4)
        assert tight.fits  # 70.6 GB of weights, and next to no cache
        assert tight.sequences_of_all < best.sequences_of_all / 10
        assert plan.best("baseline") == best

    def test_a_405b_needs_fp8_for_eight_h100(self) -> None:
        plan = planned(inspected(LLAMA_3_405B), "h100", 8, context=8192)
        assert plan.best("baseline") is None
        assert fit(plan, "baseline", 8).obstacle == "weights"
        best = plan.best("fp8-dynamic")
        assert best is not None
        assert best.tensor_parallel == 8
        hint = fit(plan, "baseline", 8).hint
        assert "--gpus-a-copy 16" in hint
        assert "recipe fp8-dynamic or awq-w4a16" in hint
        assert "a GPU such as h200" in hint

    def test_one_number_of_gpus_for_all_models_of_a_run(
        self, llama_8b: CheckpointInspection, llama_70b: CheckpointInspection
    ) -> None:
        assert planned(llama_8b, "h100", 8).gpus_a_copy == 1
        plan = planned(llama_70b, "h100", 8)
        assert (plan.gpus_a_copy, plan.expert_parallel) == (4, False)
        # Halves of Qwen 2.5 72B are no groups of 128, so its AWQ has only one GPU.
        qwen = planned(inspected(QWEN_25_72B, dense(QWEN_25_72B, bias=True)), "h100", 8)
        assert qwen.best("awq-w4a16") is not None
        assert qwen.gpus_a_copy == 4

    def test_the_profile_may_fix_the_number(self, llama_70b: CheckpointInspection) -> None:
        plan = planned(llama_70b, "h100", 8, **{"tensor-parallel-size": 8})
        assert {each.tensor_parallel for each in plan.fits} == {8}
        assert plan.gpus_a_copy == 8

    def test_more_gpus_a_copy_than_there_are(self, llama_8b: CheckpointInspection) -> None:
        h100 = catalog.load_gpu("h100")
        with pytest.raises(UsageError) as caught:
            capacity_plan(llama_8b, [], h100, 2, profile=None, gpus_a_copy=4)
        assert caught.value.where == "--gpus-a-copy 4"

    def test_divisors(self) -> None:
        assert divisors(8) == [1, 2, 4, 8]
        assert divisors(6) == [1, 2, 3, 6]


class TestObstacles:
    def test_a_gpu_without_fp8(self, llama_8b: CheckpointInspection) -> None:
        for name in ("t4", "a10g", "a100-40", "a100-80"):
            found = fit(planned(llama_8b, name), "fp8-dynamic")
            assert found.obstacle == "hardware"
            assert "compute capability 8.9" in found.reason
            assert "l4" in found.hint
            assert name not in found.hint.split("such as ")[1].split(", ")
        assert fit(planned(llama_8b, "l40s"), "fp8-dynamic").fits

    def test_a_context_that_is_too_long(self) -> None:
        model = inspected(LLAMA_3_8B | {"max_position_embeddings": 131072})
        plan = planned(model, "l4")
        found = fit(plan, "baseline")
        assert found.obstacle == "context"
        assert found.sequences_of_all == 0
        at_most = int(found.hint.split("at most ")[1].split(";")[0])
        assert fit(planned(model, "l4", context=at_most), "baseline").fits
        assert not fit(planned(model, "l4", context=at_most + 16), "baseline").fits

    def test_weights_that_are_too_large(self, llama_8b: CheckpointInspection) -> None:
        found = fit(planned(llama_8b, "t4"), "baseline")
        assert found.obstacle == "weights"
        assert "--gpus-a-copy 2" in found.hint
        assert "recipe awq-w4a16" in found.hint
        assert "a GPU such as a10g" in found.hint

    def test_heads_that_cannot_be_split(self, llama_8b: CheckpointInspection) -> None:
        found = fit(planned(llama_8b, "h100", 3), "baseline", 3)
        assert found.obstacle == "split"
        assert found.reason == "32 attention heads cannot be split over 3 GPUs"
        assert found.hint == "--gpus-a-copy 4"

    def test_experts_are_divided_by_number_where_their_width_cannot_be(self) -> None:
        """Known of Qwen 3 235B: 1,536 / 8 columns are no blocks of 128, so TP 8 does not start."""
        model = inspected(QWEN_3_235B, qwen3_moe(QWEN_3_235B))
        recipes = [catalog.load_recipe("fp8-block")]
        profile = catalog.load_profile("h100")

        def plan(**arguments: Any) -> CapacityPlan:
            changed = {**profile.engine_arguments, **arguments}
            serving = profile.model_copy(update={"engine_arguments": changed})
            return capacity_plan(model, recipes, catalog.load_gpu("h100"), 8, profile=serving)

        found = plan()
        cured = fit(found, "fp8-block", 8)
        assert (cured.fits, cured.expert_parallel) == (True, True)
        assert not fit(found, "fp8-block", 4).expert_parallel
        assert not fit(found, "baseline", 8).expert_parallel
        assert (found.gpus_a_copy, found.expert_parallel) == (8, True)
        refused = fit(plan(**{"enable-expert-parallel": False}), "fp8-block", 8)
        assert refused.obstacle == "split"
        assert "192 columns" in refused.reason
        # As many experts on each GPU as before, so as many bytes.
        switched = plan(**{"enable-expert-parallel": True})
        one, other = fit(found, "baseline", 8), fit(switched, "baseline", 8)
        assert other.expert_parallel
        assert other.weights_bytes == pytest.approx(one.weights_bytes, rel=1e-6)

    def test_the_fullest_gpu_counts_where_experts_do_not_divide(self) -> None:
        config = QWEN_3_235B | {"num_experts": 12}
        model = inspected(config, qwen3_moe(config))
        found = shards(model, model.variant(catalog.load_recipe("baseline").quantization))
        whole, cut = (found.bytes_on_gpu(8, whole_experts=each) for each in (True, False))
        assert whole - cut == pytest.approx(found.expert_bytes * (2 / 12 - 1 / 8))

    def test_blocks_of_a_checkpoint_in_fp8(self) -> None:
        config = QWEN_3_235B | {"quantization_config": {"weight_block_size": [128, 128]}}
        headers = source(config, qwen3_moe(config))
        tensors = {
            name: replace(tensor, dtype="F8_E4M3") if "experts" in name else tensor
            for name, tensor in headers.tensors.items()
        }
        model = inspect(replace(headers, tensors=tensors))
        found = shards(model, model.variant(catalog.load_recipe("baseline").quantization))
        assert "192 columns" in found.obstacle(8)
        assert found.obstacle(8, whole_experts=True) == ""

    def test_groups_that_a_part_cannot_be_cut_into(self) -> None:
        # Known of Qwen 2.5 72B: 29,568 columns are 231 groups of 128, so no two halves.
        plan = planned(inspected(QWEN_25_72B, dense(QWEN_25_72B, bias=True)), "h100", 2)
        found = fit(plan, "awq-w4a16", 2)
        assert found.obstacle == "split"
        assert "groups of 128 do not divide the 14784 columns" in found.reason
        assert fit(plan, "awq-w4a16", 1).fits

    def test_layers_that_no_group_divides(self) -> None:
        config = LLAMA_3_8B | {"num_hidden_layers": 1}
        model = inspected(config, {"model.layers.0.mlp.up_proj.weight": (64, 72)})
        found = fit(planned(model, "h100"), "awq-w4a16")
        assert found.obstacle == "recipe"
        assert "72 columns" in found.reason


class TestNotes:
    def test_released_weights_that_cannot_be_converted(self) -> None:
        model = inspected(LLAMA_3_8B | {"quantization_config": {"quant_method": "gptq"}})
        plan = planned(model, "h100")
        assert {each.variant for each in plan.fits} == {"baseline"}
        assert any("GPTQ weights, as released" in note for note in plan.notes)

    def test_released_weights_count_as_they_are_and_variants_start_in_16_bits(self) -> None:
        blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
        shapes = {"model.layers.0.mlp.up_proj.weight": (14336, 4096)}
        model = inspected(LLAMA_3_8B | {"quantization_config": blocks}, shapes, "F8_E4M3")
        plan = planned(model, "h100")
        assert fit(plan, "baseline").weights_bytes == 14336 * 4096
        assert plan.weights["awq-w4a16"].tensors[0].quantized
        assert plan.weights["awq-w4a16"].tensors[0].tensor.size == 2 * 14336 * 4096

    def test_routers_and_prediction_heads(self) -> None:
        shapes = {
            "model.layers.0.mlp.gate.weight": (256, 7168),
            "model.layers.0.mlp.experts.0.up_proj.weight": (2048, 7168),
            "model.layers.61.mlp.up_proj.weight": (18432, 7168),
        }
        plan = planned(inspected(DEEPSEEK_V3, shapes), "h200")
        assert any("not loaded" in note for note in plan.notes)
        expected = 2 * 7168 * (256 + 2048)
        assert fit(plan, "baseline").weights_bytes == expected
        router_in_16_bits, expert_in_8 = 2 * 7168 * 256, 2048 * (7168 + 2)
        assert fit(plan, "fp8-dynamic").weights_bytes == router_in_16_bits + expert_in_8

    def test_a_gpu_without_bfloat16(self, llama_8b: CheckpointInspection) -> None:
        assert "t4 has no bfloat16: serve with dtype float16" in planned(llama_8b, "t4").notes
        assert not planned(llama_8b, "h100").notes


class TestLimits:
    def test_every_gpu_has_limits(self) -> None:
        assert catalog.gpu_names()[0] == "t4"
        assert len(catalog.gpu_names()) == 17
        for name in catalog.gpu_names():
            gpu = catalog.load_gpu(name)
            limits = ServingLimits.of(gpu, catalog.profile_for_gpu(gpu.driver_name))
            assert 0 < limits.usable_bytes(gpu) < gpu.memory_bytes

    @pytest.mark.parametrize(
        ("name", "step", "sequences", "cache"),
        [
            ("t4", 2048, 256, "auto"),
            ("a100-80", 2048, 256, "auto"),
            ("l40s", 2048, 256, "fp8"),
            ("rtx-pro-6000", 8192, 1024, "fp8"),
            ("b200", 16384, 1024, "fp8"),
        ],
    )
    def test_the_engines_defaults(self, name: str, step: int, sequences: int, cache: str) -> None:
        limits = ServingLimits.of(catalog.load_gpu(name), None)
        assert (limits.step_tokens, limits.sequences) == (step, sequences)
        assert limits.kv_dtype == cache
        assert limits.baseline_kv_dtype == "auto"

    def test_the_profile_says_otherwise(self) -> None:
        gpu = catalog.load_gpu("h100")
        limits = ServingLimits.of(gpu, with_arguments({"max-model-len": 4096, "dtype": "float32"}))
        assert limits.context(131072) == 4096
        assert limits.element_bytes(is_baseline=True) == 4
        assert limits.element_bytes(is_baseline=False) == 1

    def test_a_cache_of_two_types_counts_as_the_larger(self) -> None:
        skipping = with_arguments({"kv-cache-dtype-skip-layers": ["sliding_window"]})
        limits = ServingLimits.of(catalog.load_gpu("h100"), skipping)
        assert limits.element_bytes(is_baseline=False) == 2

    def test_profiles_that_do_not_go(self) -> None:
        gpu = catalog.load_gpu("h100")
        with pytest.raises(UsageError) as caught:
            ServingLimits.of(gpu, catalog.load_profile("cpu"))
        assert caught.value.where == "--profile cpu"
        with pytest.raises(UsageError) as caught:
            ServingLimits.of(gpu, with_arguments({"max-num-seqs": "many"}))
        assert caught.value.where == "profile key engine_arguments.max-num-seqs"

    def test_more_context_than_the_model_has(self, llama_8b: CheckpointInspection) -> None:
        with pytest.raises(UsageError) as caught:
            planned(llama_8b, "h100", context=8193)
        assert caught.value.where == "--context 8193"


def with_arguments(arguments: dict[str, Any]) -> ServingProfile:
    return catalog.load_profile("h100").model_copy(update={"engine_arguments": arguments})


def test_an_unknown_gpu_names_the_known() -> None:
    with pytest.raises(UsageError) as caught:
        catalog.load_gpu("h10")
    assert "did you mean 'h100'" in caught.value.hint


def test_json_has_all_of_it(llama_8b: CheckpointInspection) -> None:
    words = planned(llama_8b, "h100", 8).to_dict()
    assert words["variants"]["fp8-dynamic"]["replicas"] == 8
    assert words["variants"]["awq-w4a16"]["precision"] == "4-bit, groups of 128, zero points"
    assert words["variants"]["awq-w4a16"]["left_parameters"]["lm_head"] == 128256 * 4096
    assert len(words["fits"]) == 3 * 4
    assert words["disk_bytes"] > words["checkpoint"]["weights_bytes"]
    assert GpuType(**words["gpu"]) == catalog.load_gpu("h100")


def test_a_draft_models_weights_count_for_variants(llama_8b: CheckpointInspection) -> None:
    gpu = catalog.load_gpu("h100")
    profile = catalog.profile_for_gpu(gpu.driver_name)
    recipes = [catalog.load_recipe(name) for name in NAMES]
    without = capacity_plan(llama_8b, recipes, gpu, 2, profile=profile)
    drafted = capacity_plan(llama_8b, recipes, gpu, 2, profile=profile, draft_bytes=2 * 10**9)
    for number in (1, 2):
        before, after = (fit(each, NAMES[0], number) for each in (without, drafted))
        assert after.weights_bytes - before.weights_bytes == 2 * 10**9 // number
        assert after.tokens < before.tokens
        assert fit(drafted, "baseline", number) == fit(without, "baseline", number)
    assert any("draft" in note for note in drafted.notes)
    assert not any("draft" in note for note in without.notes)
