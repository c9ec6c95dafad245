"""Checks that a recipe suits a checkpoint and a machine, before any work."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pipeline.checkpoint.safetensors_header import TensorEntry
from pipeline.core.errors import PrepareError, StageError, UsageError
from pipeline.inspection.fused_sets import CURE, find_split, fused_name
from pipeline.inspection.header_source import HeaderSource
from pipeline.inspection.linear_layers import WEIGHT, is_linear_weight
from pipeline.inspection.module_kind import is_expert_stack, module_kind
from pipeline.inspection.unquantized_modules import decoder_layers
from pipeline.inspection.variant_size import VariantWeights, find_undivided_rows
from pipeline.verification.adopted import quantization_config
from recipes.catalog import BASELINE
from recipes.engines import find_engine
from recipes.schema import Recipe, ServingProfile


def check_processor(profile: ServingProfile, features: Collection[str]) -> None:
    """Check that the engine can serve on this CPU with the profile's KV cache.

    Raises:
        UsageError: it cannot.
    """
    engine = find_engine(profile.engine)
    # Other kinds of CPU have features of their own, and interpreters that the user names.
    has = features if platform.machine() == "x86_64" else {*features, "avx2"}
    if lack := engine.lacks(has):
        raise UsageError(
            lack,
            where=f"--profile {profile.name}",
            hint="run on a newer machine, or on one with a GPU",
        )
    for dtype in (profile.kv_cache_dtype, profile.baseline_kv_cache_dtype):
        if lack := engine.lacks(has, dtype):
            raise UsageError(
                lack,
                where=f"--profile {profile.name}, key kv_cache_dtype",
                hint="give the profile a CPU override, as `cpu` has one, or kv_cache_dtype: auto "
                "(docs/how-to/recipes-and-profiles.md)",
            )


def find_loading_fault(
    model: HeaderSource, profile: ServingProfile, variant: str = ""
) -> PrepareError | None:
    """Refuse weights that others quantized, if the engine cannot load them.

    Args:
        variant: its name; empty for the baseline.
    """
    config = quantization_config(model.config, model.quantizer)
    lack = find_engine(profile.engine).cannot_load(config, profile.accelerator) if config else ""
    if not lack:
        return None
    cure = "leave the variant out" if variant else "start from the 16-bit checkpoint"
    return StageError(
        f"'{variant or BASELINE}' cannot be served: {lack}",
        where=f"{model.where}, key quantization_config",
        hint=f"{cure}; or serve it by an engine that loads it, and compare two endpoints: prepare "
        "gate (docs/how-to/gate-two-endpoints.md)",
    )


def find_making_faults(
    recipe: Recipe, source: HeaderSource, weights: VariantWeights
) -> Iterator[PrepareError]:
    """Yield the reasons why the recipe cannot make a variant of the checkpoint."""
    checks: tuple[Callable[[], None], ...] = (
        lambda: check_architecture(recipe, source.architecture),
        lambda: check_layers(recipe, source, weights),
        lambda: check_experts(recipe, source.tensors),
        lambda: check_mtp(recipe, source.tensors, source.config),
        lambda: check_shapes(recipe, weights),
        lambda: check_parts(recipe, weights),
    )
    for check in checks:
        try:
            check()
        except PrepareError as fault:
            yield fault


def check_architecture(recipe: Recipe, architecture: str) -> None:
    """Raise UsageError if the recipe excludes such models."""
    if not recipe.suits(architecture):
        known = ", ".join(recipe.architectures) or "all others"
        raise UsageError(
            f"'{recipe.name}' is not for {architecture}: it is for {known}",
            where=f"--recipe {recipe.name}",
            hint=f"use the recipe {recipe.suggested_recipe}"
            if recipe.suggested_recipe
            else "leave the recipe out, or choose another: prepare show",
        )


def check_layers(recipe: Recipe, source: HeaderSource, weights: VariantWeights) -> None:
    """Raise StageError if the checkpoint has no layers that quantizers and vLLM can take."""
    transposed = [
        name
        for name, tensor in source.tensors.items()
        if name.endswith(".c_attn.weight") and tensor.shape[1:] == (3 * tensor.shape[0],)
    ]
    if transposed or not any(each.quantized for each in weights.tensors):
        why = "the recipe's names leave out every matrix"
        if transposed:
            why = f"its matrices are transposed (Conv1D), such as '{transposed[0]}'"
        raise StageError(
            f"'{recipe.name}' finds no layer to quantize in {source.architecture}: {why}",
            where=f"--recipe {recipe.name}; {source.where}",
            hint="correct quantization.ignore"
            if not transposed
            else "use a model whose layers are linear, as Llama's are",
        )


def check_shapes(recipe: Recipe, weights: VariantWeights) -> None:
    """Check that the recipe's groups or blocks divide every layer that it quantizes.

    Args:
        weights: planned weights of the variant.

    Raises:
        StageError: they do not; the message names the widths.
    """
    hint = "choose a recipe without groups or blocks, such as fp8-dynamic"
    if weights.undivided:
        raise StageError(
            f"'{recipe.name}' does not suit this checkpoint: none of its group sizes divides "
            f"layers of {', '.join(map(str, weights.undivided))} columns",
            where=f"--recipe {recipe.name}",
            hint=f"{hint}; where the recipe has the key quantization.smaller_group_sizes, "
            "a size there that divides them will do",
        )
    shapes = {each.name: each.tensor.shape for each in weights.tensors if each.quantized}
    rows = find_undivided_rows(recipe.quantization, shapes)
    if rows:
        name, count = next(iter(rows.items()))
        raise StageError(
            f"'{recipe.name}' does not suit this checkpoint: its blocks do not divide the {count} "
            f"rows of '{name}', which vLLM puts together with others",
            where=f"--recipe {recipe.name}",
            hint=hint,
        )


def check_parts(recipe: Recipe, weights: VariantWeights) -> None:
    """Check that each of the recipe's formats has modules, and that fused sets have one format.

    Raises:
        StageError: not so; the message names the modules.
    """
    where = f"--recipe {recipe.name}"
    for part in recipe.quantization.parts if weights.forms else ():
        if not {*part.weight_formats} & {*weights.forms}:
            raise StageError(
                f"'{recipe.name}' does not suit this checkpoint: no module gets the format "
                f"'{part.weight_formats[0]}'",
                where=where,
                hint=f"correct the names in quantization.other_schemes: prepare show {recipe.name}",
            )
    matrices = [each for each in weights.tensors if is_linear_weight(each.name, each.tensor)]
    split = find_split({each.name.removesuffix(WEIGHT): each.form for each in matrices})
    if split:
        raise StageError(
            f"'{recipe.name}' gives '{split[0]}' and '{split[1]}' two formats, and vLLM would load "
            "both in that of the first",
            where=where,
            hint=f"change quantization.ignore or quantization.other_schemes: {CURE}",
        )
    part_of, last = recipe.quantization.part_of, len(recipe.quantization.parts) - 1
    for name in (each.name.removesuffix(WEIGHT) for each in matrices if each.form is not None):
        fused = fused_name(name)
        if fused is not None and part_of(fused) not in (last, part_of(name)):
            raise StageError(
                f"'{recipe.name}' gives '{name}' another format than '{fused}', by which vLLM "
                "looks for it",
                where=where,
                hint="change quantization.other_schemes: name the modules of one scheme alone",
            )


def check_experts(recipe: Recipe, tensors: Mapping[str, TensorEntry]) -> None:
    """Check that a MoE model's experts are separate matrices, as vLLM expects them.

    FP8's stream leaves stacks as they are. llm-compressor takes them apart and saves the experts
    apart, under names that the source does not have, so nothing of them could be verified.

    Raises:
        StageError: the source has the experts of a layer in one tensor, and the recipe would have
            to take them apart.
    """
    if recipe.quantization.keeps_stacked_experts:
        return
    for name, tensor in tensors.items():
        if is_expert_stack(name, len(tensor.shape)):
            raise StageError(
                f"'{recipe.name}' does not suit this checkpoint: '{name}' has all experts of a "
                "layer in one tensor",
                where=f"--recipe {recipe.name}",
                hint="choose fp8-dynamic, which leaves such experts in 16 bits",
            )


def check_mtp(
    recipe: Recipe, tensors: Mapping[str, TensorEntry], config: Mapping[str, Any]
) -> None:
    """Check that no layers for multi-token prediction (MTP) would be lost.

    transformers does not load them; AutoAWQ's worker does not copy them.

    Raises:
        StageError: the source has such layers, and the recipe's worker loses them.
    """
    if recipe.quantization.carries_mtp:
        return
    layers = decoder_layers(config)
    for name, tensor in tensors.items():
        if module_kind(name, len(tensor.shape), layers) == "mtp":
            raise StageError(
                f"'{recipe.name}' does not suit this checkpoint: '{name}' is of a head for "
                "multi-token prediction, which transformers does not load, so it would be lost",
                where=f"--recipe {recipe.name}",
                hint="choose awq-w4a16, which copies such heads as they are",
            )
