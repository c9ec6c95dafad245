"""Checks that a recipe suits checkpoint and engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from prepare.errors import PrepareError, UsageError, VerificationError
from recipes.catalog import BASELINE
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.ignore_list import decoder_layers
from recipes.checkpoints.module_kind import (
    EXPERTS,
    WEIGHT,
    is_expert_stack,
    is_linear_weight,
    module_kind,
)
from recipes.checkpoints.variant_size import VariantWeights, find_undivided_rows
from recipes.engines import find_engine
from recipes.fused_sets import (
    CURE,
    find_split,
    fused_name,
    is_renamed_expert,
    pattern_of_set,
)
from recipes.module_lists import is_listed, to_expression
from recipes.quantizers.preset import WithOtherSchemes
from recipes.schema import Recipe, ServingProfile
from recipes.weight_format import WeightFormat
from recipes.weights.layouts import NotComparableError
from recipes.weights.stored_formats import quantization_config, stored_formats

QUANTIZED_TYPES = ("F8_E4M3", "I8", "I32", "U8")  # a weight's, in safetensors


def find_loading_fault(
    model: Checkpoint, profile: ServingProfile, variant: str = ""
) -> PrepareError | None:
    """Return why the engine cannot load weights that others quantized.

    `variant` is empty for the baseline.
    """
    config = quantization_config(model.config, model.quantizer or {})
    lack = find_engine(profile.engine).cannot_load(config, profile.accelerator) if config else ""
    if not lack:
        return None
    cure = "leave the variant out" if variant else "start from the 16-bit checkpoint"
    return UsageError(
        f"'{variant or BASELINE}' cannot be served: {lack}",
        where=f"{model.where}, key quantization_config",
        hint=f"{cure}; or serve it by an engine that loads it, and compare two endpoints: prepare "
        "gate (docs/how-to/gate-two-endpoints.md)",
    )


def find_drafting_fault(draft: Checkpoint, profile: ServingProfile) -> PrepareError | None:
    """Return why the engine cannot draft with a model that others quantized."""
    config = quantization_config(draft.config, draft.quantizer or {})
    lack = find_engine(profile.engine).cannot_draft(config) if config else ""
    if not lack:
        return None
    return UsageError(
        lack,
        where=f"profile {profile.name}, key speculative.model; {draft.where}",
        hint="name a draft model in one format, or in 16 bits",
    )


def find_making_faults(
    recipe: Recipe, source: Checkpoint, weights: VariantWeights
) -> Iterator[PrepareError]:
    """Yield why the recipe cannot make a variant.

    `weights` are the planned ones.
    """
    where = f"--recipe {recipe.name}"
    unfit = f"'{recipe.name}' does not suit this checkpoint"
    if not recipe.suits(source.architecture):
        known = ", ".join(recipe.architectures) or "all others"
        suggested = recipe.suggested_recipe
        yield UsageError(
            f"'{recipe.name}' is not for {source.architecture}: it is for {known}",
            where=where,
            hint=f"use the recipe {suggested}"
            if suggested
            else "leave the recipe out, or choose another: prepare show",
        )
    transposed = next(
        (
            name
            for name, tensor in source.tensors.items()
            if name.endswith(".c_attn.weight") and tensor.shape[1:] == (3 * tensor.shape[0],)
        ),
        None,
    )
    if transposed or not any(weight.quantized for weight in weights.tensors):
        why = "the recipe's names leave out every matrix"
        if transposed:
            why = f"its matrices are transposed (Conv1D), such as '{transposed}'"
        yield UsageError(
            f"'{recipe.name}' finds no layer to quantize in {source.architecture}: {why}",
            where=f"{where}; {source.where}",
            hint="use a model whose layers are linear, as Llama's are"
            if transposed
            else "correct quantization.ignore",
        )
    layers = decoder_layers(source.config)
    for name, tensor in source.tensors.items():
        # llm-compressor saves a stack's experts apart, under names that the source does not have.
        if not recipe.quantization.keeps_stacked_experts and is_expert_stack(
            name, len(tensor.shape)
        ):
            yield UsageError(
                f"{unfit}: '{name}' has all experts of a layer in one tensor",
                where=where,
                hint="choose fp8-dynamic, which leaves such experts in 16 bits",
            )
            break
    for name, tensor in source.tensors.items():
        is_mtp = module_kind(name, len(tensor.shape), layers) == "mtp"
        if is_mtp and not recipe.quantization.carries_mtp:
            yield UsageError(
                f"{unfit}: '{name}' is of a head for multi-token prediction, which transformers "
                "does not load, so it would be lost",
                where=where,
                hint="choose awq-w4a16, which copies such heads as they are",
            )
            break
    yield from _shape_faults(recipe, weights, unfit, where)
    yield from _format_faults(recipe, weights, unfit, where)


def find_serving_fault(
    recipe: Recipe, weights: VariantWeights, profile: ServingProfile, features: Collection[str]
) -> PrepareError | None:
    """Return why the engine cannot serve the variant that the recipe would make.

    `features` are the CPU's.
    """
    forms = ((tensor.name, tensor.form) for tensor in weights.tensors if tensor.form is not None)
    name, lack = _lacking_expert(forms, profile, features)
    if not lack:
        return None
    return UsageError(
        f"'{recipe.name}' would quantize experts such as '{name}', and {lack}",
        where=f"--recipe {recipe.name}; profile {profile.name}, key accelerator",
        hint="leave the recipe out, or experts by its quantization.ignore; or run on a machine "
        "with a GPU (with AMX, for int8-w8a8)",
    )


def find_expert_fault(
    model: Checkpoint, profile: ServingProfile, features: Collection[str], variant: str = ""
) -> PrepareError | None:
    """Return why the engine cannot serve the experts that others quantized.

    `variant` is empty for the baseline, `features` are the CPU's.
    """
    config = quantization_config(model.config, model.quantizer or {})
    try:
        formats = stored_formats(config, model.where)
    except (NotComparableError, VerificationError):
        return None  # unquantized; or the stages tell
    forms = (
        (name, form)
        for name, tensor in model.tensors.items()
        if is_expert(name)
        and tensor.dtype in QUANTIZED_TYPES
        and (form := formats.of(name.rpartition(".")[0])) is not None
    )
    name, lack = _lacking_expert(forms, profile, features)
    if not lack:
        return None
    cure = "leave the variant out" if variant else "start from the 16-bit checkpoint"
    return UsageError(
        f"'{variant or BASELINE}' cannot be served as on a GPU: '{name}' is of a quantized expert, "
        f"and {lack}",
        where=f"{model.where}, key quantization_config; profile {profile.name}, key accelerator",
        hint=f"{cure}; or run on a machine with a GPU",
    )


def _lacking_expert(
    forms: Iterable[tuple[str, WeightFormat]], profile: ServingProfile, features: Collection[str]
) -> tuple[str, str]:
    """Return the first expert's tensor that the engine lacks on such a CPU, and why, or ''.

    `forms` are by tensor, and not read for a GPU.
    """
    if profile.accelerator != "cpu":
        return "", ""
    engine = find_engine(profile.engine)
    for name, form in forms:
        if is_expert(name) and (lack := engine.lacks_experts(form, features)):
            return name, lack
    return "", ""


def is_expert(name: str) -> bool:
    """Return whether the matrix is one of a routed expert."""
    return any(part in EXPERTS for part in name.split("."))


def _shape_faults(
    recipe: Recipe, weights: VariantWeights, unfit: str, where: str
) -> Iterator[PrepareError]:
    """Yield layers that groups or blocks do not divide."""
    hint = "choose a recipe without groups or blocks, such as fp8-dynamic"
    if weights.undivided:
        yield UsageError(
            f"{unfit}: none of its group sizes divides layers of "
            f"{', '.join(map(str, weights.undivided))} columns",
            where=where,
            hint=f"{hint}; where the recipe has the key quantization.smaller_group_sizes, "
            "a size there that divides them will do",
        )
        return
    shapes = {tensor.name: tensor.tensor.shape for tensor in weights.tensors if tensor.quantized}
    for name, count in find_undivided_rows(recipe.quantization, shapes).items():
        yield UsageError(
            f"{unfit}: its blocks do not divide the {count} rows of '{name}', which vLLM puts "
            "together with others",
            where=where,
            hint=hint,
        )
        return


def _format_faults(
    recipe: Recipe, weights: VariantWeights, unfit: str, where: str
) -> Iterator[PrepareError]:
    """Yield the first fault of the recipe's formats: of their lists, or of a fused set."""
    forms = {
        tensor.name.removesuffix(WEIGHT): tensor.form
        for tensor in weights.tensors
        if is_linear_weight(tensor.name, tensor.tensor)
    }
    faults = (
        *_list_faults(recipe, weights, forms, unfit),
        *_fused_faults(recipe, forms),
        *_absent_faults(recipe, forms),
    )
    for what, hint in faults[:1]:
        yield UsageError(what, where=where, hint=hint)


def _list_faults(
    recipe: Recipe,
    weights: VariantWeights,
    forms: Mapping[str, WeightFormat | None],
    unfit: str,
) -> Iterator[tuple[str, str]]:
    """Yield faults, with their cure, of `other_schemes`."""
    quantization = recipe.quantization
    key = "quantization.other_schemes"
    if not isinstance(quantization, WithOtherSchemes) or not quantization.others:
        return
    quantized = [name for name, form in forms.items() if form is not None]
    for scheme, words in quantization.others.items():
        for word in words:
            if not any(is_listed(module, [word]) for module in quantized):
                yield (
                    f"{unfit}: '{word}' of {scheme} matches no module that is quantized",
                    f"correct or remove it in {key} of the recipe's file",
                )
            elif unmatched := _find_prefixed(word, quantized):
                yield (
                    f"{unfit}: '{word}' of {scheme} matches '{unmatched}' from its beginning, and "
                    "vLLM may put another one before it",
                    f"begin the pattern with '*', or write the whole name, in {key}",
                )
    for module in quantized:
        schemes = [n for n, words in quantization.others.items() if is_listed(module, words)]
        if schemes and is_renamed_expert(module):
            yield (
                f"{unfit}: '{module}' is in the list of {schemes[0]}, and the quantizer knows "
                "these experts by other names than vLLM (llm-compressor's issue 3069)",
                f"leave such experts out of {key}",
            )
            break
        if len(schemes) > 1:
            yield (
                f"{unfit}: '{module}' is in the lists of {' and '.join(schemes)}",
                f"name each module once in {key}: the quantizer keeps no order of lists",
            )
            break
    for part in quantization.parts if weights.forms else ():
        if not {*part.weight_formats} & {*weights.forms}:
            yield (
                f"{unfit}: no module gets the format '{part.weight_formats[0]}'",
                f"correct the names in {key} of the recipe's file",
            )


def _find_prefixed(word: str, modules: Collection[str]) -> str | None:
    """Return a module that a pattern matches by its outermost name.

    vLLM renames modules of models for images and text, and of targets only whole names.
    """
    if to_expression(word) is None:
        return None
    return next(
        (
            module
            for module in modules
            if not module.startswith(("model.layers.", "lm_head"))
            and is_listed(module, [word])
            and not is_listed(f"another.{module}", [word])
        ),
        None,
    )


def _fused_faults(
    recipe: Recipe, forms: Mapping[str, WeightFormat | None]
) -> Iterator[tuple[str, str]]:
    """Yield faults, with their cure, of matrices that vLLM stores as one."""
    if split := find_split(forms):
        yield (
            f"'{recipe.name}' gives '{split[0]}' and '{split[1]}' two formats, and vLLM would load "
            "both in that of the first",
            f"change quantization.ignore or quantization.other_schemes: {CURE}; here "
            f"'{pattern_of_set(split[0])}' is all of them",
        )
    quantization = recipe.quantization
    part_of = quantization.part_of
    last = len(quantization.parts) - 1
    for name in (name for name, form in forms.items() if form is not None):
        fused = fused_name(name)
        if fused is not None and part_of(fused) not in (last, part_of(name)):
            yield (
                f"'{recipe.name}' gives '{name}' another format than '{fused}', by which vLLM "
                "looks for it",
                "change quantization.other_schemes: name the modules of one scheme alone",
            )
            return


def _absent_faults(
    recipe: Recipe, forms: Mapping[str, WeightFormat | None]
) -> Iterator[tuple[str, str]]:
    """Yield layers without v_proj whose list leaves it out (vLLM's issue 47473).

    vLLM has a matrix of q, k and v there too, and finds its format by all three names.
    """
    part_of = recipe.quantization.part_of
    for name, form in forms.items():
        attention, _, leaf = name.rpartition(".")
        absent = f"{attention}.v_proj"
        if leaf != "k_proj" or absent in forms:
            continue
        hint = f"write '{pattern_of_set(name)}', which matches it"
        if form is None:
            yield (
                f"'{recipe.name}' leaves '{name}' in 16 bits, and there is no '{absent}': vLLM "
                "finds no single format for the three and ends (its issue 47473)",
                "quantize these layers, with FP8_DYNAMIC in quantization.other_schemes: " + hint,
            )
        elif part_of(absent) != part_of(name):
            yield (
                f"'{recipe.name}' gives '{name}' another format than '{absent}', which is not "
                "there, and vLLM looks for both (its issue 47473)",
                hint + ", in quantization.other_schemes",
            )
