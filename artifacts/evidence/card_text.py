"""What a model card says in words: of the source, the quantization and the machine."""

from __future__ import annotations

from artifacts.deployable import Deployable
from pipeline.checkpoint.source_info import SourceInfo
from pipeline.core.hardware import Hardware
from pipeline.core.untrusted.text import markdown, markdown_code, markdown_link
from pipeline.serving.serving_arguments import KV_DTYPE
from pipeline.stages.check_weights import CheckWeightsResult
from pipeline.stages.quantize import QuantizeResult
from recipes.quantization import (
    AutoAwqQuantization,
    AwqQuantization,
    GptqQuantization,
    PresetQuantization,
    Quantization,
)

PRESETS = {
    "FP8_DYNAMIC": "FP8 weights (one scale an output channel), FP8 activations (one scale a token, "
    "found while serving)",
    "FP8_BLOCK": "FP8 weights (one scale a block of 128 x 128), FP8 activations",
    "FP8": "FP8 weights and activations, one static scale a tensor",
    "NVFP4": "4-bit floats (NVFP4) in groups of 16, weights and activations",
}
GPTQ_SCHEMES = {
    "W4A16": "4-bit weights, 16-bit activations",
    "W8A8": "8-bit weights (one scale an output channel), 8-bit activations (one scale a token)",
}


def percent(score: float) -> float:
    """A score from 0 to 1 in points of 100, to two places, as the field prints them."""
    return round(100 * score, 2)


def base_words(source: SourceInfo) -> str:
    """The source, as a link where it is on the Hub."""
    if source.base_model:
        return markdown_link(source.base_model, f"https://huggingface.co/{source.base_model}")
    return f"`{markdown_code(source.ref)}`"


def license_words(source: SourceInfo) -> str:
    """The license, or that nobody wrote it down where we looked."""
    name = source.license_name or source.license
    if not name:
        return "not known: the source's folder does not name it"
    if source.license_link:
        return markdown_link(name, source.license_link)
    return f"{markdown(name)}, as the source's"


def quantization_words(quantization: Quantization, result: QuantizeResult) -> str:
    """Number format and granularity, as far as the recipe's kind is known here."""
    groups = f" in groups of {result.group_size}" if result.group_size else ""
    if isinstance(quantization, PresetQuantization):
        return PRESETS[quantization.scheme]
    if isinstance(quantization, GptqQuantization):
        return f"{GPTQ_SCHEMES[quantization.scheme]}{groups}"
    if isinstance(quantization, AwqQuantization):
        points = "" if quantization.symmetric else ", with zero points"
        return f"{quantization.bits}-bit weights{groups}{points}, 16-bit activations"
    if isinstance(quantization, AutoAwqQuantization):
        return f"4-bit weights{groups}, with zero points, 16-bit activations"
    return quantization.kind


def optimization_words(quantization: Quantization, result: QuantizeResult) -> str:
    """How the weights of the linear layers were quantized, as sentences."""
    ways = {
        "preset": "Weights are rounded to nearest, by llm-compressor.",
        "awq": "AWQ (arXiv 2306.00978), by llm-compressor: channels that matter to the activations "
        "are scaled up before rounding.",
        "autoawq": "AWQ (arXiv 2306.00978), by AutoAWQ.",
        "gptq": "GPTQ (arXiv 2210.17323), by llm-compressor: each rounding is compensated by the "
        "weights that follow.",
    }
    modules = result.quantized_modules
    count = f" of {modules} linear layers" if modules else " of the linear layers"
    smoothed = (
        quantization.smoothing_strength if isinstance(quantization, GptqQuantization) else None
    )
    smoothing = (
        f" SmoothQuant (arXiv 2211.10438) before it, strength {smoothed:g}." if smoothed else ""
    )
    way = ways.get(quantization.kind, "")
    return f"{quantization_words(quantization, result)}{count}. {way}{smoothing}".strip()


def calibration_words(quantization: Quantization, result: QuantizeResult) -> str:
    """What it was calibrated with; '' where the recipe needs no data."""
    calibration = quantization.calibration
    if not calibration:
        return ""
    name = str(calibration.dataset)
    data = "the texts that `prepare` carries" if name == "builtin" else f"`{markdown_code(name)}`"
    blocks = result.calibration_blocks or calibration.samples
    return f"Calibrated with {blocks} blocks of {calibration.max_tokens} tokens from {data}."


def kv_cache_words(deployable: Deployable, quantization: Quantization) -> str:
    """The KV cache's type, and what it does to attention.

    On a GPU, vLLM with an FP8 cache computes attention in FP8 too, by one scale a layer; those are
    1.0, but for the keys' and values' of a recipe that stores some.
    """
    dtype = str(deployable.serving.engine_arguments.get(KV_DTYPE, "auto"))
    name = f"`{markdown_code(dtype)}`"
    if not dtype.startswith("fp8") or deployable.accelerator != "cuda":
        return name
    scales = (
        "queries' scales are 1.0, keys' and values' are calibrated"
        if isinstance(quantization, PresetQuantization) and quantization.kv_cache_scales
        else "the scales of queries, keys and values are 1.0"
    )
    return f"{name}, and so is attention: queries are quantized as well; {scales}"


def speculative_words(deployable: Deployable) -> str:
    """What drafted tokens, and which were accepted; '' without speculative decoding."""
    speculative = deployable.serving.speculative
    if speculative is None:
        return ""
    words = markdown_code(speculative.words(deployable.serving.engine))
    return f"`{words}`" + (" (`DRAFT` is its folder)" if speculative.model else "")


def noise_words(checked: CheckWeightsResult) -> str:
    """How far the weights are from the source's; '' where the stage did not measure it."""
    noise = checked.sqnr
    if noise is None or noise.median_db is None:
        return ""
    return (
        f"Signal to quantization noise of the weights: {noise.median_db:.1f} dB in the median "
        "layer (every layer's is in the bundle)."
    )


def hardware_words(hardware: Hardware) -> str:
    """The machine in words."""
    if hardware.accelerator == "cpu":
        features = "".join(f", {name}" for name in hardware.cpu_features or ())
        cores = hardware.cores or "?"
        return markdown(f"CPU ({hardware.cpu or 'unknown'}, {cores} cores{features})")
    return markdown(hardware.gpu or "unknown hardware")
