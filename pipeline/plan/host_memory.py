"""Estimated host memory and disk of each stage of a variant.

Each estimate adds sizes from headers and a constant for libraries.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pipeline.inspection.variant_size import VariantWeights
from pipeline.plan.memory import GIB, Model
from pipeline.workers.quantize_model_free import MEMORY_A_WORKER
from recipes.engines import find_engine
from recipes.quantization import Calibration
from recipes.schema import Recipe, ServingProfile

LIBRARIES_BYTES = GIB  # Python with torch and a quantizer: 0.6 to 0.8 GiB, without weights
SERVER_BYTES = 2 * GIB  # the engine's processes on a CPU, without weights and cache
ELEMENT_BYTES = 2  # of the type that models are loaded in
CACHED_COPIES = 2  # the inputs of a layer, and its outputs, of all samples
LAYER_COPIES = 4  # of one batch inside a layer, in 32 bits: input, gate, up and their product
SMALL_FILES_BYTES = 50_000_000  # tokenizer, config, record and logs of a variant


@dataclass(frozen=True)
class StageResources:
    """Resources of one stage of a variant."""

    stage: str  # its name; "serve" for the server
    variant: str
    host_bytes: int | None  # memory of the machine, not of a GPU; None if unknown
    disk_bytes: int  # that stay on disk
    basis: str  # components of the memory


def stage_needs(
    model: Model,
    recipes: Sequence[Recipe],
    weights: dict[str, VariantWeights],
    profile: ServingProfile | None,
    made: Collection[str] = (),
    draft_bytes: int = 0,
) -> list[StageResources]:
    """Return the needs of each variant's `quantize`, `check_weights` and server.

    Without a profile, models are served on a GPU. Recipes in `made` need no quantizing.
    `draft_bytes` are the weights of the variants' draft model.
    """
    to_make = [recipe for recipe in recipes if recipe.name not in made]
    quantized = [quantize_need(model, r, weights[r.name], profile) for r in to_make]
    checked = [check_need(model, recipe, weights[recipe.name]) for recipe in recipes]
    served = [serve_need(model, r, weights[r.name], profile, draft_bytes) for r in recipes]
    return [*(need for need in (*quantized, *checked) if need is not None), *served]


def quantize_need(
    model: Model,
    recipe: Recipe,
    weights: VariantWeights,
    profile: ServingProfile | None,
) -> StageResources | None:
    """Estimate a recipe's `quantize`; None for the baseline."""
    quantization = recipe.quantization
    if not quantization.quantizes:
        return None
    disk = weights.bytes + SMALL_FILES_BYTES
    if quantization.is_streamed:
        # A published model with unknown file sizes counts as one file, an upper estimate.
        source = model.recipe_source
        shard = source.largest_file_bytes or source.weights_bytes
        host = int(MEMORY_A_WORKER * shard) + LIBRARIES_BYTES
        return StageResources(
            "quantize", recipe.name, host, disk, "2.5 weight files and the libraries"
        )
    wide = profile is not None and profile.quantizes_in_float32
    loaded = sixteen_bit_bytes(model) * (2 if wide else 1)
    calibration = limit_calibration(quantization.calibration, profile)
    activations = activation_bytes(model, calibration) if calibration else 0
    bits = "32" if wide else "16"
    words = f"weights in {bits} bits, activations of all samples" if calibration else "weights"
    return StageResources(
        "quantize",
        recipe.name,
        loaded + activations + LIBRARIES_BYTES,
        disk,
        f"{words} and the libraries",
    )


def check_need(model: Model, recipe: Recipe, weights: VariantWeights) -> StageResources | None:
    """Estimate a recipe's `check_weights`; None for the baseline.

    Adopted weights may turn out to be rescaled; that they are compared by rows is the usual case.
    """
    if not recipe.quantization.quantizes:
        return None
    if recipe.quantization.rounding == "rescaled":
        whole = sixteen_bit_bytes(model)
        return StageResources(
            "check_weights", recipe.name, whole + LIBRARIES_BYTES, whole, "weights in 16 bits"
        )
    return StageResources("check_weights", recipe.name, LIBRARIES_BYTES, 0, "some rows")


def serve_need(
    model: Model,
    recipe: Recipe,
    weights: VariantWeights,
    profile: ServingProfile | None,
    draft_bytes: int = 0,
) -> StageResources:
    """Estimate the host memory of a variant's server; unknown on a GPU."""
    if profile is None or profile.accelerator != "cpu":
        return StageResources("serve", recipe.name, None, 0, "weights and cache are on the GPU")
    wide = profile.engine_arguments.get("dtype") in ("float32", "float")
    served = sum(
        recipe.quantization.for_module(each.name.removesuffix(".weight")).bytes_on_cpu(
            each.bytes, wide=wide
        )
        if each.quantized
        else _plain_bytes_on_cpu(each.bytes, each.tensor.dtype, wide=wide)
        for each in weights.tensors
    )
    cache = find_engine(profile.engine).cpu_cache_bytes(profile.environment)
    if recipe.family != "baseline":
        served += 2 * draft_bytes if wide else draft_bytes
    words = "weights, KV cache and the server" if cache else "weights and the server, no KV cache"
    return StageResources("serve", recipe.name, served + cache + SERVER_BYTES, 0, words)


def sixteen_bit_bytes(model: Model) -> int:
    """Return the bytes of all tensors in the types in which a quantizer loads them."""
    return sum(tensor.size for tensor in model.recipe_source.tensors.values())


def activation_bytes(model: Model, calibration: Calibration) -> int:
    """Return the bytes of all samples between two layers, and of one batch inside a layer."""
    shape = model.shape
    tokens = calibration.samples * calibration.max_tokens
    batch = calibration.batch_size * calibration.max_tokens
    between = CACHED_COPIES * tokens * shape.hidden * ELEMENT_BYTES
    return between + LAYER_COPIES * batch * max(shape.hidden, shape.inner) * 4


def limit_calibration(
    calibration: Calibration | None, profile: ServingProfile | None
) -> Calibration | None:
    """Apply the profile's limit, if any, to the calibration."""
    limit = profile.calibration_limit if profile else None
    return limit.limit(calibration) if calibration and limit else calibration


def _plain_bytes_on_cpu(size: int, dtype: str, *, wide: bool) -> int:
    sixteen = size // 2 if dtype in ("F32", "F64") else size
    return 2 * sixteen if wide else sixteen
