"""Every recipe of llm-compressor's, by the real stage and worker in the real environment.

Tiny random models and as few tokens as possible: what is written is looked at (formats, what is
quantized and what is not), and each variant is loaded by transformers and held against its source.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from weight_comparer import Compare, check_variant, comparer

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.data_sources import BUILTIN_CALIBRATION
from pipeline.preflight.suitability import (
    find_expert_fault,
    find_making_faults,
    find_serving_fault,
)
from pipeline.stages.check_weights import VerificationResult
from pipeline.stages.context import advance
from pipeline.stages.quantize import (
    QUANTIZE,
    CalibrationCompute,
    QuantizeParameters,
    QuantizeRuntime,
)
from prepare.digest import FileDigests
from prepare.errors import StageError
from prepare.events import NullProgress
from prepare.hardware import cpu_features
from prepare.stage import StageRecord
from prepare.store import Store
from recipes.accelerator import Accelerator
from recipes.catalog import load_profile, load_recipe, recipe_names
from recipes.checkpoints.checkpoint import Checkpoint, inspect_folder, read_folder
from recipes.checkpoints.ignore_list import ignore_list
from recipes.checkpoints.module_kind import module_kind
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.checkpoints.variant_size import variant_weights
from recipes.checkpoints.weight_files import read_json
from recipes.fused_sets import pattern_of_set
from recipes.module_lists import is_listed
from recipes.quantization import AnyQuantization, Quantization
from recipes.rungs import Rung, give_back, rung_of
from recipes.schema import Recipe

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]

SCRIPT = Path(__file__).parent / "tiny_models.py"
CLIPPING = SCRIPT.with_name("kv_clipping_inside.py")
ROOT = SCRIPT.parents[2]
BLOCKS, TOKENS = 2, 64
RECIPES = [
    name for name in recipe_names() if load_recipe(name).quantization.environment == "quantize"
]

ATTENTION = "model.layers.0.self_attn"
QUERIES = f"{ATTENTION}.q_proj"
WIDTH = 128
# By recipe: types and shapes of what stands for a matrix of 128 x 128.
PACKED = {"weight_packed": ("I32", (128, 16)), "weight_shape": ("I64", (2,))}
NVFP4 = {
    "weight_packed": ("U8", (128, 64)),
    "weight_scale": ("F8_E4M3", (128, 8)),
    "weight_global_scale": ("F32", (1,)),
    "input_global_scale": ("F32", (1,)),
}
FORMATS: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
    "fp8-dynamic": {"weight": ("F8_E4M3", (128, 128)), "weight_scale": ("BF16", (128, 1))},
    "fp8-block": {"weight": ("F8_E4M3", (128, 128)), "weight_scale": ("BF16", (1, 1))},
    "fp8-static": {
        "weight": ("F8_E4M3", (128, 128)),
        "weight_scale": ("BF16", (1,)),
        "input_scale": ("BF16", (1,)),
    },
    "int8-w8a8": {"weight": ("I8", (128, 128)), "weight_scale": ("BF16", (128, 1))},
    "gptq-w4a16": PACKED | {"weight_scale": ("BF16", (128, 1))},
    "awq-w4a16": PACKED
    | {"weight_scale": ("BF16", (128, 1)), "weight_zero_point": ("I32", (16, 1))},
    "awq-w4a16-mse": PACKED
    | {"weight_scale": ("BF16", (128, 1)), "weight_zero_point": ("I32", (16, 1))},
    "awq-w4a16-g64": PACKED
    | {"weight_scale": ("BF16", (128, 2)), "weight_zero_point": ("I32", (16, 2))},
    "awq-w4a16-sym": PACKED | {"weight_scale": ("BF16", (128, 1))},
    "nvfp4": NVFP4,
    "nvfp4a16": {
        "weight_packed": ("U8", (128, 64)),
        "weight_scale": ("F8_E4M3", (128, 8)),
        "weight_global_scale": ("F32", (1,)),
    },
    "mxfp4": {"weight_packed": ("U8", (128, 64)), "weight_scale": ("U8", (128, 4))},
}
# Relative difference of the logits: beyond what was seen (0.42 for Gemma 2 by GPTQ, on AMX). A
# variant that computes something else has 1.4.
DIFFERENCE = {"fp8": 0.15, "int8": 0.15, "int4": 0.6, "fp4": 0.45}


@dataclass(frozen=True)
class Variant:
    """What the stage made of a model."""

    source: Checkpoint
    folder: Path
    record: StageRecord

    @property
    def output(self) -> Path:
        return self.folder / "output"

    @property
    def tensors(self) -> dict[str, TensorEntry]:
        return read_folder(self.output).tensors

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = read_json(self.output / "config.json")["quantization_config"]
        return found


class Workshop:
    """Tiny models, and the stage that quantizes them."""

    def __init__(self, folder: Path, compare: Compare) -> None:
        self.folder, self.compare = folder, compare
        self.python = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress()).python
        self.made: dict[tuple[str, str, str | None], Variant] = {}
        self.script("make", str(folder), str(BUILTIN_CALIBRATION))

    def script(self, *words: str) -> str:
        """What tiny_models.py prints."""
        command = [str(self.python), str(SCRIPT), *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        return done.stdout

    def variant(self, model: str, name: str, compute: str | None = None) -> Variant:
        """The variant, made when it is first asked for."""
        if (model, name, compute) not in self.made:
            self.made[model, name, compute] = self.quantize(model, name, compute)
        return self.made[model, name, compute]

    def quantize(
        self, model: str, name: str, compute: str | None = None, kv_scales: str | None = None
    ) -> Variant:
        digests = FileDigests(self.folder / "digests.json")
        source = inspect_folder(self.folder / model, digests)
        recipe = made_recipe(name, source)
        own, fp8 = recipe.quantization.ignore, recipe.quantization.is_fp8
        changes: dict[str, Any] = {
            "ignore": ignore_list(source.tensors, source.config, own, fp8=fp8)
        }
        if recipe.quantization.calibration is not None:
            few = {"dataset": "builtin", "column": "text", "samples": BLOCKS, "max_tokens": TOKENS}
            changes["calibration"] = recipe.quantization.calibration.model_copy(update=few)
        if kv_scales is not None:
            changes["kv_cache_scales"] = kv_scales
        spec = QUANTIZE.spec(
            name,
            QuantizeParameters(
                checkpoint=source.digest,
                quantization=recipe.quantization.model_copy(update=changes),
                environment="",
                compute=CalibrationCompute(dtype=compute),
            ),
            {},
            QuantizeRuntime(
                checkpoint=source.place,
                python=str(self.python),
                calibration_file=str(BUILTIN_CALIBRATION),
                recipe=recipe.model_dump(mode="json"),
            ),
            self.folder / "store",
        )
        record = advance(spec, Store(Path(spec.store)), NullProgress())[0]
        return Variant(source, self.folder / "store" / "stages" / "quantize" / spec.key, record)


def made_recipe(name: str, source: Checkpoint) -> Recipe:
    """The recipe of this name; a rung with what it gives back, as a run makes it."""
    rung = Rung.parse(name)
    recipe = rung_of(load_recipe(rung.base), rung)
    if rung.percent is None:
        return recipe
    assert source.here is not None
    return give_back(
        *(recipe, source.here, source.tensors, source.config),
        *(rung.percent, "FP8_DYNAMIC", NullProgress()),
    )[0]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with comparer(tmp_path_factory.mktemp("comparer")) as compare:
        yield Workshop(tmp_path_factory.mktemp("recipes"), compare)


def stands_for(variant: Variant, module: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types and shapes of what stands for a module's matrix."""
    return {
        name.removeprefix(f"{module}."): (tensor.dtype, tensor.shape)
        for name, tensor in variant.tensors.items()
        if name.startswith(f"{module}.")
    }


def verify(workshop: Workshop, variant: Variant) -> VerificationResult:
    """Verify it as the stage does."""
    quantization: Quantization = TypeAdapter(AnyQuantization).validate_python(
        variant.record.parameters["quantization"]
    )
    return check_variant(variant.source.path, variant.output, quantization, workshop.compare)


def verified_layers(workshop: Workshop, variant: Variant) -> int:
    """How many layers were compared."""
    return len(verify(workshop, variant).layers)


@pytest.mark.parametrize("name", ["fp8-dynamic", "awq-w4a16"])
@pytest.mark.parametrize(("model", "modules"), [("llama2", 14), ("gemma4", 13)])
def test_stored_buffers_and_shared_values(
    workshop: Workshop, model: str, modules: int, name: str
) -> None:
    variant = workshop.variant(model, name)
    assert variant.record.result["quantized_modules"] == modules
    assert verified_layers(workshop, variant) == modules
    assert not [each for each in variant.tensors if each.endswith("1.self_attn.v_proj.weight")] or (
        model == "llama2"
    )


@pytest.mark.parametrize("name", RECIPES)
class TestDenseModel:
    def test_formats(self, workshop: Workshop, name: str) -> None:
        variant = workshop.variant("llama", name)
        assert stands_for(variant, QUERIES) == FORMATS[name]
        assert variant.tensors["lm_head.weight"].dtype == "BF16"
        assert variant.tensors["model.embed_tokens.weight"].dtype == "BF16"
        assert variant.record.result["quantized_modules"] == 2 * 7
        assert variant.config["quant_method"] == "compressed-tensors"
        assert "lm_head" in variant.config["ignore"]

    def test_the_record(self, workshop: Workshop, name: str) -> None:
        variant = workshop.variant("llama", name)
        recipe, result = load_recipe(name), variant.record.result
        sizes = recipe.quantization.group_sizes
        assert result.get("group_size") == (sizes[0] if sizes else None)
        calibrated = recipe.quantization.calibration is not None
        assert result.get("calibration_tokens") == (BLOCKS * TOKENS if calibrated else None)
        assert result["least_tokens_of_an_expert"] is None
        kept = json.loads((variant.folder / "recipe.json").read_text())
        assert kept["name"] == name
        assert kept["quantization"] == variant.record.parameters["quantization"]

    def test_the_scales_of_the_kv_cache(self, workshop: Workshop, name: str) -> None:
        variant = workshop.variant("llama", name)
        scales = {n for n in variant.tensors if n.endswith((".k_scale", ".v_scale"))}
        if name != "fp8-static":
            assert not scales
            return
        assert scales == {
            f"model.layers.{layer}.self_attn.{side}_scale" for layer in (0, 1) for side in "kv"
        }
        assert variant.config["kv_cache_scheme"]["num_bits"] == 8


@pytest.mark.parametrize(
    ("name", "unit", "shape"),
    [
        ("gptq-w4a16", "head", (4, 1, 1)),
        ("awq-w4a16", "tensor", (1,)),
        ("nvfp4", "head", (4, 1, 1)),
    ],
)
def test_scales_of_the_kv_cache_with_any_recipe(
    workshop: Workshop, name: str, unit: str, shape: tuple[int, ...]
) -> None:
    variant = workshop.quantize("llama", name, kv_scales=unit)
    shapes = {
        tensor.shape
        for name, tensor in variant.tensors.items()
        if name.endswith((".k_scale", ".v_scale"))
    }
    assert shapes == {shape}
    assert verified_layers(workshop, variant) == 2 * 7
    clipping = variant.record.result["kv_clipping"]
    assert clipping["tokens"] == TOKENS
    assert max(clipping["keys"], clipping["values"]) <= clipping["worst_share"] < 0.1


def test_the_clipped_share_is_that_of_the_stored_keys_and_values(workshop: Workshop) -> None:
    """Limits are at the quantile 0.8 of each head's keys and at 0.99 of its values."""
    done = subprocess.run(
        [str(workshop.python), str(CLIPPING), str(workshop.folder / "llama")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    clipping = json.loads(done.stdout)
    assert clipping["tokens"] == 64
    assert clipping["keys"] == pytest.approx(0.2, abs=0.01)
    assert clipping["values"] == pytest.approx(0.01, abs=0.005)
    assert clipping["worst_share"] == pytest.approx(0.2, abs=0.01)


def test_every_variant_computes_what_its_source_does(workshop: Workshop) -> None:
    """Loaded and decompressed by transformers: what was written means what it should."""
    made = {str(workshop.variant("llama", name).output): name for name in RECIPES}
    found = json.loads(workshop.script("compare", str(workshop.folder / "llama"), *made))
    for folder, name in made.items():
        assert 0 < found[folder] < DIFFERENCE[load_recipe(name).family], name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *(("llama", n) for n in ("awq-w4a16", "awq-w4a16-sym", "gptq-w4a16", "int8-w8a8")),
        *(("gemma2", "awq-w4a16"), ("llama", "fp8-static"), ("qwen3_moe", "awq-w4a16")),
    ],
)
def test_computed_in_32_bits_and_stored_as_ever(workshop: Workshop, model: str, name: str) -> None:
    """As on a CPU without bf16: the same tensors of the same types, that mean the same."""
    wide, usual = workshop.variant(model, name, "float32"), workshop.variant(model, name)
    types = [
        {tensor: (its.dtype, its.shape) for tensor, its in variant.tensors.items()}
        for variant in (wide, usual)
    ]
    assert types[0] == types[1]
    assert wide.config == usual.config
    saved = [read_json(variant.output / "config.json") for variant in (wide, usual)]
    assert saved[0] == saved[1]
    assert verified_layers(workshop, wide) == verified_layers(workshop, usual) > 0
    if model == "qwen3_moe":
        return  # transformers does not find the experts of a compressed checkpoint
    output = str(wide.output)
    found = json.loads(workshop.script("compare", str(workshop.folder / model), output))
    assert 0 < found[output] < DIFFERENCE[load_recipe(name).family]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *((model, name) for model in ("qwen2", "stablelm") for name in ("awq-w4a16", "int8-w8a8")),
        *(("gemma2", name) for name in ("awq-w4a16", "int8-w8a8", "gptq-w4a16", "fp8-static")),
    ],
)
def test_vectors_fit_the_matrices(workshop: Workshop, model: str, name: str) -> None:
    """Biases of layers (Qwen2) and of norms (StableLM); norms that are stored less one (Gemma)."""
    variant = workshop.variant(model, name)
    assert verified_layers(workshop, variant) == 2 * 7
    output, source = str(variant.output), str(workshop.folder / model)
    found = json.loads(workshop.script("compare", source, output))
    assert 0 < found[output] < DIFFERENCE[load_recipe(name).family]


@pytest.mark.parametrize(
    ("model", "name"),
    [("mixtral", "gptq-w4a16"), ("mixtral", "fp8-dynamic"), ("qwen3_moe", "awq-w4a16")],
)
def test_experts_are_calibrated_and_routers_left_alone(
    workshop: Workshop, model: str, name: str
) -> None:
    variant = workshop.variant(model, name)
    source = read_folder(workshop.folder / model).tensors
    routers = {tensor for tensor in source if tensor.endswith(".gate.weight")}
    experts = {tensor.removesuffix(".weight") for tensor in source if ".experts." in tensor}
    assert (len(routers), len(experts)) == (2, 2 * 4 * 3)
    assert {variant.tensors[router].dtype for router in routers} == {"BF16"}
    # Under the source's own names, so that vLLM and verification find them.
    for expert in experts:
        assert set(stands_for(variant, expert)) == set(FORMATS[name])
    result = variant.record.result
    assert result["quantized_modules"] == 2 * 4 + len(experts)
    if name != "fp8-dynamic":
        assert result["experts"] == 2 * 4
        assert result["least_tokens_of_an_expert"] == BLOCKS * TOKENS


@pytest.mark.parametrize("name", ["fp8-dynamic", "fp8-block"])
def test_experts_in_stacks_stay_and_the_rest_is_quantized(workshop: Workshop, name: str) -> None:
    """gpt-oss: the variant is verified, and computes what its source does."""
    variant = workshop.variant("gpt_oss", name)
    source = read_folder(workshop.folder / "gpt_oss").tensors
    stacks = {tensor for tensor, its in source.items() if len(its.shape) == 3}
    assert len(stacks) == 2 * 2
    for tensor in (*stacks, "model.layers.0.mlp.router.weight"):
        assert variant.tensors[tensor].dtype == "BF16"
        assert variant.tensors[tensor].shape == source[tensor].shape
    assert stands_for(variant, QUERIES) == FORMATS[name] | {"bias": ("BF16", (WIDTH,))}
    assert variant.record.result["quantized_modules"] == 2 * 4
    assert is_listed("model.layers.1.mlp.experts.0.up_proj", variant.config["ignore"])
    assert verified_layers(workshop, variant) == 2 * 4
    output = str(variant.output)
    found = json.loads(workshop.script("compare", str(workshop.folder / "gpt_oss"), output))
    assert 0 < found[output] < DIFFERENCE["fp8"]


@pytest.mark.parametrize("name", ["fp8-dynamic", "awq-w4a16", "int8-w8a8", "nvfp4", "mxfp4"])
@pytest.mark.parametrize("model", ["qwen2_5_vl", "gemma3", "mistral3"])
def test_models_of_images_are_quantized_in_their_text_alone(
    workshop: Workshop, model: str, name: str
) -> None:
    """Towers and projectors equal the source's, bit by bit: verification compares them."""
    variant = workshop.variant(model, name)
    source = read_folder(workshop.folder / model).tensors
    towers = {tensor for tensor in source if module_kind(tensor, 2, 2) == "vision"}
    assert len(towers) > 20
    for tensor in towers:
        assert variant.tensors[tensor].dtype == "BF16"
        assert variant.tensors[tensor].shape == source[tensor].shape
    assert variant.record.result["quantized_modules"] == 2 * 7
    assert verified_layers(workshop, variant) == 2 * 7


@pytest.mark.parametrize("model", ["qwen2_5_vl", "gemma3", "mistral3"])
def test_models_of_images_are_served(workshop: Workshop, model: str) -> None:
    """By the real engine: the variant's scores are close to the source's, and not equal."""
    source = served_scores(workshop.folder / model)
    variant = served_scores(workshop.variant(model, "fp8-dynamic").output)
    assert len(source["text"]) > 4
    for ours, theirs in zip(source.values(), variant.values(), strict=True):
        assert 0 < max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 0.5
    for scores in (source, variant):
        assert scores["black"] != scores["white"]


def ask_engine(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run prompt_scores.py on a checkpoint."""
    serving = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    script = Path(__file__).with_name("prompt_scores.py")
    command = [str(serving), "-I", str(script), str(folder), "The image shows a thing."]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def served_scores(folder: Path) -> dict[str, list[float]]:
    """What prompt_scores.py prints."""
    done = ask_engine(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found: dict[str, list[float]] = json.loads(line.removeprefix("RESULT "))
    return found


@pytest.mark.parametrize("name", ["awq-w4a16", "gptq-w4a16", "fp8-dynamic", "nvfp4a16"])
def test_linear_attention_has_16_bits_or_fp8(workshop: Workshop, name: str) -> None:
    """Qwen3-Next: a layer of linear attention, and one of full, with experts in both."""
    variant = workshop.variant("qwen3_next", name)
    fp8 = {"in_proj_qkvz", "out_proj"} if name == "fp8-dynamic" else set()
    linear = "model.layers.0.linear_attn"
    for leaf in ("in_proj_qkvz", "in_proj_ba", "out_proj", "conv1d"):
        dtype = variant.tensors[f"{linear}.{leaf}.weight"].dtype
        assert dtype == ("F8_E4M3" if leaf in fp8 else "BF16"), leaf
    assert set(stands_for(variant, "model.layers.1.self_attn.q_proj")) == set(FORMATS[name])
    quantized = len(fp8) + 4 + 2 * 3 * (4 + 1)
    assert variant.record.result["quantized_modules"] == quantized
    assert verified_layers(workshop, variant) == quantized


@pytest.mark.parametrize("name", ["awq-w4a16", "int8-w8a8"])
def test_a_dense_layer_before_the_experts(workshop: Workshop, name: str) -> None:
    """GLM-4 MoE: the library's own mappings for it name a router that the first layer lacks."""
    variant = workshop.variant("glm4_moe", name)
    quantized = 2 * 4 + 3 + (4 + 1) * 3
    assert variant.record.result["quantized_modules"] == quantized
    assert variant.record.result["least_tokens_of_an_expert"] >= BLOCKS * TOKENS
    assert verified_layers(workshop, variant) == quantized


def test_group_sizes_that_divide_nothing(workshop: Workshop) -> None:
    """Named by the worker too: it sees layers that no checkpoint has as such."""
    with pytest.raises(StageError, match=r"no group size of \[16\] divides layers") as caught:
        workshop.quantize("narrow", "nvfp4")
    assert "fp8-dynamic" in caught.value.hint


def test_experts_that_nobody_can_calibrate(workshop: Workshop) -> None:
    """JetMoe stacks them as no other class does; refused before the weights are loaded."""
    with pytest.raises(StageError, match="cannot calibrate the experts of JetMoe") as caught:
        workshop.quantize("jetmoe", "gptq-w4a16")
    assert "fp8-dynamic" in caught.value.hint


EIGHT_BITS = {
    "FP8_DYNAMIC": {"weight": ("F8_E4M3", (128, 128)), "weight_scale": ("BF16", (128, 1))},
    "W8A16": {
        "weight_packed": ("I32", (128, 32)),
        "weight_scale": ("BF16", (128, 1)),
        "weight_shape": ("I64", (2,)),
    },
}


def recipe_with(folder: Path, name: str, **other_schemes: list[str]) -> str:
    """The path of a recipe that gives some modules of a built-in one another format."""
    file = folder / f"{'-'.join([name, *map(str.lower, other_schemes)])}.yaml"
    own = {"name": file.stem, "extends": name, "quantization": {"other_schemes": other_schemes}}
    file.write_text(json.dumps(own))
    return str(file)


@pytest.mark.parametrize("name", ["awq-w4a16", "gptq-w4a16", "int8-w8a8", "nvfp4"])
@pytest.mark.parametrize("scheme", ["FP8_DYNAMIC", "W8A16"])
def test_modules_in_another_format(workshop: Workshop, scheme: str, name: str) -> None:
    """Attention of the first layer: what is written, what verification says, what it computes."""
    file = recipe_with(workshop.folder, name, **{scheme: ["*.layers.0.self_attn.*"]})
    variant = workshop.variant("llama", file)
    assert stands_for(variant, QUERIES) == EIGHT_BITS[scheme]
    assert stands_for(variant, "model.layers.1.self_attn.q_proj") == FORMATS[name]
    assert set(stands_for(variant, "model.layers.0.mlp.up_proj")) == set(FORMATS[name])
    assert verified_layers(workshop, variant) == 2 * 7
    planned = variant_weights(
        variant.source.tensors, load_recipe(file).quantization, variant.source.config
    )
    written = sum(tensor.size for tensor in variant.tensors.values())
    assert planned.bytes == pytest.approx(written, rel=0.01)
    output = str(variant.output)
    found = json.loads(workshop.script("compare", str(workshop.folder / "llama"), output))
    assert 0 < found[output] < DIFFERENCE[load_recipe(file).family]


@pytest.mark.parametrize("name", ["awq-w4a16", "gptq-w4a16"])
@pytest.mark.parametrize(
    ("model", "module", "layers"),
    [
        ("qwen3_moe", "model.layers.0.mlp.experts.3.down_proj", 2 * (4 + 4 * 3)),
        ("phi3", "model.layers.0.mlp.gate_up_proj", 2 * 4),
        ("gemma4", "model.layers.1.self_attn.k_proj", 13),
    ],
)
def test_a_fused_set_gets_another_format_as_a_whole(
    workshop: Workshop, name: str, model: str, module: str, layers: int
) -> None:
    file = recipe_with(workshop.folder, name, FP8_DYNAMIC=[pattern_of_set(module)])
    renamed = Path(file).rename(Path(file).with_name(f"{model}-{Path(file).name}"))
    variant = workshop.variant(model, str(renamed))
    weights = variant_weights(
        variant.source.tensors, load_recipe(str(renamed)).quantization, variant.source.config
    )
    assert not list(find_making_faults(load_recipe(str(renamed)), variant.source, weights))
    assert stands_for(variant, module)["weight"][0] == "F8_E4M3"
    assert verified_layers(workshop, variant) == layers


@pytest.mark.parametrize(
    ("model", "percent", "layers"),
    [("phi3", 10, 2 * 4), ("qwen3_moe", 10, 2 * (4 + 4 * 3)), ("qwen3_moe", 30, 2 * (4 + 4 * 3))],
)
def test_a_rung_splits_no_fused_set(
    workshop: Workshop, model: str, percent: int, layers: int
) -> None:
    """At 30 % one layer's experts have 8 bits, and the other's 4."""
    variant = workshop.variant(model, f"awq-w4a16+{percent}")
    types: dict[str, set[str]] = {}
    for name, tensor in variant.tensors.items():
        module, _, part = name.rpartition(".")
        if part == "weight_packed" or tensor.dtype == "F8_E4M3":
            types.setdefault(pattern_of_set(module), set()).add(tensor.dtype)
    assert all(len(of_set) == 1 for of_set in types.values())
    assert set().union(*types.values()) == {"I32", "F8_E4M3"}
    of_experts = [types[pattern] for pattern in sorted(types) if "experts" in pattern]
    if of_experts:
        assert of_experts == [{"I32"}, {"I32" if percent == 10 else "F8_E4M3"}]
    verified = verify(workshop, variant)  # refuses what is not finite
    assert len(verified.layers) == layers
    assert verified.outputs is not None  # transformers computes with it, in 16 bits
    assert 0 < verified.outputs["divergence_nats"] < 0.1


@pytest.mark.parametrize("name", ["awq-w4a16+10", "fp8-dynamic", "int8-w8a8"])
def test_experts_are_served_or_plan_says_why_not(workshop: Workshop, name: str) -> None:
    variant = workshop.variant("qwen3_moe", name)
    source = variant.source
    recipe = made_recipe(name, source)
    weights = variant_weights(source.tensors, recipe.quantization, source.config)
    fault = find_serving_fault(recipe, weights, load_profile("cpu"), cpu_features())
    served = ask_engine(variant.output)
    assert (fault is None) == (served.returncode == 0), served.stderr[-3000:]
    if fault is not None:
        assert "experts" in fault.message
        assert "MoE backend" in served.stdout + served.stderr
    others = find_expert_fault(read_folder(variant.output), load_profile("cpu"), cpu_features())
    assert (fault is None) == (others is None)
