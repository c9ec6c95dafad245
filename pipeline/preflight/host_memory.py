"""Estimated host memory of each stage of a variant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.preflight.memory import GIB, Model
from recipes.checkpoints.variant_size import VariantWeights
from recipes.engines import find_engine
from recipes.quantization import Calibration
from recipes.quantizers.model_free_worker import MEMORY_A_WORKER
from recipes.schema import Recipe, ServingProfile

LIBRARIES_BYTES = GIB  # Python with torch and a quantizer, without weights: 0.6 to 0.8 GiB
SERVER_BYTES = 2 * GIB  # the engine's processes on a CPU, without weights and cache
ELEMENT_BYTES = 2  # of the type that models are loaded in
CACHED_COPIES = 2  # a layer's inputs and outputs, of all samples
LAYER_COPIES = 4  # of one batch inside a layer, in 32 bits: input, gate, up and their product


@dataclass(frozen=True)
class HostNeed:
    """Host memory of one stage of a variant."""

    stage: str  # "serve" for the server
    variant: str
    host_bytes: int


def making_needs(
    model: Model, recipe: Recipe, weights: VariantWeights, profile: ServingProfile
) -> Iterator[HostNeed]:
    """Yield what quantizing and checking take."""
    quantization = recipe.quantization
    if not quantization.quantizes:
        return
    sixteen_bit = sum(tensor.size for tensor in model.recipe_source.tensors.values())
    if quantization.is_streamed:
        # A published model with unknown file sizes counts as one file, an upper estimate.
        shard = model.recipe_source.largest_file_bytes or model.recipe_source.weights_bytes
        host = int(MEMORY_A_WORKER * shard)
    else:
        host = sixteen_bit * (2 if profile.quantizes_in_float32 else 1)
        calibration = quantization.calibration
        limit = profile.calibration_limit
        if calibration:
            host += activation_bytes(model, limit.limit(calibration) if limit else calibration)
    yield HostNeed("quantize", recipe.name, host + LIBRARIES_BYTES)
    checked = sixteen_bit if quantization.rounding == "rescaled" else 0
    yield HostNeed("check_weights", recipe.name, checked + LIBRARIES_BYTES)


def serving_bytes(
    model: Model,
    recipe: Recipe,
    weights: VariantWeights,
    profile: ServingProfile,
    draft_bytes: int = 0,
) -> int:
    """Estimate a server's host memory; 0 on a GPU."""
    if profile.accelerator != "cpu":
        return 0
    wide = profile.engine_arguments.get("dtype") in ("float32", "float")
    served = 0
    for tensor in weights.tensors:
        if tensor.quantized:
            part = recipe.quantization.for_module(tensor.name.removesuffix(".weight"))
            served += part.bytes_on_cpu(tensor.bytes, wide=wide)
        else:
            sixteen = tensor.bytes // 2 if tensor.tensor.dtype in ("F32", "F64") else tensor.bytes
            served += 2 * sixteen if wide else sixteen
    if recipe.family != "baseline":
        served += 2 * draft_bytes if wide else draft_bytes
    cache = find_engine(profile.engine).cpu_cache_bytes(profile.environment)
    return served + cache + SERVER_BYTES


def activation_bytes(model: Model, calibration: Calibration) -> int:
    """Return the bytes of samples between layers, and of a batch inside one."""
    shape = model.shape
    tokens = calibration.samples * calibration.max_tokens
    batch = calibration.batch_size * calibration.max_tokens
    between = CACHED_COPIES * tokens * shape.hidden * ELEMENT_BYTES
    return between + LAYER_COPIES * batch * max(shape.hidden, shape.inner) * 4
