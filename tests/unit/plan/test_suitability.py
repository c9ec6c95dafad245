"""What does not suit is refused before any work, with a hint."""

from __future__ import annotations

from typing import Any

import pytest
from published_models import (
    DEEPSEEK_V3,
    LLAMA_3_8B,
    MIXTRAL_8X22B,
    Shapes,
    deepseek,
    dense,
    inspected,
    mixtral,
    source,
)

from pipeline.core.cpu_features import FEATURES
from pipeline.core.errors import StageError, UsageError
from pipeline.inspection.variant_size import VariantWeights, variant_weights
from pipeline.plan.suitability import (
    check_architecture,
    check_experts,
    check_mtp,
    check_parts,
    check_processor,
    check_shapes,
)
from recipes.catalog import load_profile, load_recipe, recipe_names
from recipes.quantization import Quantization
from recipes.schema import Recipe

DEMO: dict[str, Any] = LLAMA_3_8B | {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_hidden_layers": 1,
    "num_key_value_heads": 3,
}


MIXED = "nvfp4"
ATTENTION_IN_FP8 = {"other_schemes": {"FP8_DYNAMIC": [r"re:.*attn\..*", r"re:.*attention\..*"]}}


def changed(name: str, **changes: Any) -> Recipe:
    return load_recipe(name).model_copy(update=changes)


class TestServers:
    def test_a_cpu_without_avx2_serves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        with pytest.raises(UsageError, match="AVX2"):
            check_processor(load_profile("cpu").fit_to(()), ())

    def test_another_kind_of_cpu_is_not_refused_for_want_of_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("platform.machine", lambda: "aarch64")
        check_processor(load_profile("cpu").fit_to(()), ())

    def test_the_cpu_profile_is_served_on_every_other(self) -> None:
        for features in (("avx2",), ("avx2", "avx512f"), FEATURES):
            check_processor(load_profile("cpu").fit_to(features), features)

    def test_a_profile_without_a_fallback_for_its_cache(self) -> None:
        profile = load_profile("cpu").model_copy(update={"cpu_overrides": {}})
        with pytest.raises(UsageError) as caught:
            check_processor(profile.fit_to(("avx2",)), ("avx2",))
        assert "kv_cache_dtype" in caught.value.where


class TestArchitectures:
    @pytest.mark.parametrize(
        ("suited", "unsuited", "suits"),
        [
            ([], [], True),
            (["Llama*"], [], True),
            (["Qwen*", "LlamaForCausalLM"], [], True),
            (["Qwen*"], [], False),
            ([], ["Llama*"], False),
            (["Llama*"], ["LlamaForCausalLM"], False),
            ([], ["Qwen*"], True),
        ],
    )
    def test_patterns(self, suited: list[str], unsuited: list[str], suits: bool) -> None:
        recipe = changed("awq-w4a16", architectures=suited, unsupported_architectures=unsuited)
        if suits:
            check_architecture(recipe, "LlamaForCausalLM")
        else:
            with pytest.raises(UsageError, match="'awq-w4a16'"):
                check_architecture(recipe, "LlamaForCausalLM")

    def test_the_recipe_to_use_instead_is_named(self) -> None:
        with pytest.raises(UsageError, match="'autoawq-w4a16'") as caught:
            check_architecture(load_recipe("autoawq-w4a16"), "OPTForCausalLM")
        assert caught.value.hint == "use the recipe awq-w4a16"


def weights_of(
    config: dict[str, Any], shapes: Shapes, quantization: Quantization
) -> VariantWeights:
    return variant_weights(inspected(config, shapes).source.tensors, quantization, config)


def check(name: str, config: dict[str, Any], shapes: Shapes) -> None:
    recipe = load_recipe(name)
    check_shapes(recipe, weights_of(config, shapes, recipe.quantization))


class TestShapes:
    def refusal(self, recipe: str, config: dict[str, Any], shapes: Shapes) -> StageError:
        with pytest.raises(StageError) as caught:
            check(recipe, config, shapes)
        assert caught.value.where == f"--recipe {recipe}"
        return caught.value

    @pytest.mark.parametrize("name", sorted({*recipe_names()} - {"fp8-block"}))
    def test_the_demo_model_suits(self, name: str) -> None:
        check(name, DEMO, dense(DEMO))

    @pytest.mark.parametrize("name", recipe_names())
    def test_large_models_suit(self, name: str) -> None:
        for config, shapes in (
            (LLAMA_3_8B, dense(LLAMA_3_8B)),
            (MIXTRAL_8X22B, mixtral(MIXTRAL_8X22B)),
        ):
            check(name, config, shapes)

    def test_blocks_and_the_demo_model(self) -> None:
        error = self.refusal("fp8-block", DEMO, dense(DEMO))
        assert "layers of 576 columns" in error.message
        assert "fp8-dynamic" in error.hint

    def test_rows(self) -> None:
        narrow = LLAMA_3_8B | {"num_key_value_heads": 8, "num_hidden_layers": 1}
        shapes = dense(narrow) | {"model.layers.0.self_attn.k_proj.weight": (64, 4096)}
        error = self.refusal("fp8-block", narrow, shapes)
        assert "the 64 rows of 'model.layers.0.self_attn.k_proj.weight'" in error.message

    def test_what_is_ignored_may_have_any_shape(self) -> None:
        shapes = dense(DEMO) | {"vision_tower.fc.weight": (7, 7), "lm_head.weight": (49152, 7)}
        check("awq-w4a16", DEMO, shapes)


class TestParts:
    """Recipes that give some modules another format."""

    def check(self, changes: dict[str, Any], shapes: Shapes, name: str = MIXED) -> None:
        recipe = load_recipe(name)
        quantization = recipe.quantization.model_copy(update=changes)
        recipe = recipe.model_copy(update={"quantization": quantization})
        check_parts(recipe, weights_of(DEMO, shapes, quantization))

    @pytest.mark.parametrize("name", recipe_names())
    def test_built_in_recipes_suit(self, name: str) -> None:
        for config, shapes in (
            (LLAMA_3_8B, dense(LLAMA_3_8B)),
            (MIXTRAL_8X22B, mixtral(MIXTRAL_8X22B)),
        ):
            recipe = load_recipe(name)
            check_parts(recipe, weights_of(config, shapes, recipe.quantization))

    @pytest.mark.parametrize("words", [["*.v_proj"], ["*.q_proj", "*.k_proj"], ["*.up_proj"]])
    def test_a_fused_set_in_two_formats(self, words: list[str]) -> None:
        with pytest.raises(StageError, match="two formats, and vLLM would load") as caught:
            self.check({"other_schemes": {"FP8_DYNAMIC": words}}, dense(DEMO))
        assert words[0].removeprefix("*.") in caught.value.message
        assert "one format" in caught.value.hint

    def test_vllm_looks_for_a_fused_set_by_its_own_name(self) -> None:
        """`qkv_proj` matches the second scheme alone, and vLLM takes the first that matches."""
        schemes = {
            "FP8_DYNAMIC": [r"re:.*attn\.[qkvo]_proj"],
            "MXFP4": ["*attn*_proj", "*.down_proj"],
        }
        with pytest.raises(StageError, match=r"self_attn\.qkv_proj', by which vLLM"):
            self.check({"other_schemes": schemes}, dense(DEMO))
        alone = {"FP8_DYNAMIC": [r"re:.*attn\.[qkvo]_proj"], "MXFP4": ["*.down_proj"]}
        self.check({"other_schemes": alone}, dense(DEMO))

    @pytest.mark.parametrize(
        ("name", "changes"), [(MIXED, ATTENTION_IN_FP8), ("awq-w4a16", {})], ids=["two", "one"]
    )
    def test_a_fused_set_that_is_quantized_in_part(
        self, name: str, changes: dict[str, Any]
    ) -> None:
        with pytest.raises(StageError, match=r"q_proj' and '.*k_proj' two formats"):
            self.check({"ignore": ["lm_head", "*.k_proj"], **changes}, dense(DEMO), name)

    def test_names_that_the_model_does_not_have(self) -> None:
        with pytest.raises(StageError, match="no module gets the format 'float-quantized"):
            self.check({"other_schemes": {"FP8_DYNAMIC": ["*.attention"]}}, dense(DEMO))


STACKED: Shapes = {"model.layers.0.mlp.experts.gate_up_proj": (4, 32, 64)}


class TestExperts:
    @pytest.mark.parametrize("name", sorted({*recipe_names()} - {"fp8-dynamic", "fp8-block"}))
    def test_stacks_are_refused(self, name: str) -> None:
        tensors = source(LLAMA_3_8B, STACKED).tensors
        with pytest.raises(StageError, match=r"experts\.gate_up_proj") as caught:
            check_experts(load_recipe(name), tensors)
        assert "fp8-dynamic" in caught.value.hint

    def test_what_is_not_refused(self) -> None:
        stacked = source(LLAMA_3_8B, STACKED).tensors
        check_experts(load_recipe("fp8-dynamic"), stacked)
        check_experts(load_recipe("fp8-block"), stacked)
        apart = source(MIXTRAL_8X22B, mixtral(MIXTRAL_8X22B)).tensors
        check_experts(load_recipe("awq-w4a16"), apart)


class TestMultiTokenPrediction:
    NAMED: Shapes = dense(DEMO) | {"mtp.layers.0.mlp.up_proj.weight": (32, 64)}

    def test_is_refused_by_name_and_as_a_layer_after_the_last(self) -> None:
        recipe = load_recipe("autoawq-w4a16")
        with pytest.raises(StageError, match=r"'mtp\.layers\.0\.mlp\.up_proj") as caught:
            check_mtp(recipe, source(DEMO, self.NAMED).tensors, DEMO)
        assert "awq-w4a16" in caught.value.hint
        layers = {"model.layers.61.input_layernorm.weight": (7168,)}
        with pytest.raises(StageError, match=r"'model\.layers\.61\.input_layernorm"):
            check_mtp(recipe, source(DEEPSEEK_V3, layers).tensors, DEEPSEEK_V3)

    @pytest.mark.parametrize("name", sorted({*recipe_names()} - {"autoawq-w4a16"}))
    def test_is_carried_by_all_others(self, name: str) -> None:
        check_mtp(load_recipe(name), source(DEMO, self.NAMED).tensors, DEMO)

    def test_models_without_are_not_refused(self) -> None:
        recipe = load_recipe("awq-w4a16")
        for config, shapes in (
            (LLAMA_3_8B, dense(LLAMA_3_8B)),
            (MIXTRAL_8X22B, mixtral(MIXTRAL_8X22B)),
        ):
            check_mtp(recipe, source(config, shapes).tensors, config)
        last = {n: s for n, s in deepseek(DEEPSEEK_V3).items() if "layers.61." not in n}
        check_mtp(recipe, source(DEEPSEEK_V3, last).tensors, DEEPSEEK_V3)
