"""Text of a model card: source, quantization and machine."""

from __future__ import annotations

from artifacts.deployable import Deployable
from pipeline.checkpoint.source_info import SourceInfo
from pipeline.core.escape import markdown, markdown_code, markdown_link
from pipeline.core.hardware import Hardware
from pipeline.stages.check_weights import CheckWeightsResult
from pipeline.stages.quantize import QuantizeResult
from recipes.engines.engine import KV_DTYPE
from recipes.quantization import Quantization
from recipes.quantizers.adopted import AdoptedQuantization


def percent(score: float) -> float:
    """Convert a score from 0 to 1 to percent, with two decimal places."""
    return round(100 * score, 2)


def describe_base(source: SourceInfo) -> str:
    """Describe the source, with a link to the Hub."""
    if source.base_model:
        return markdown_link(source.base_model, f"https://huggingface.co/{source.base_model}")
    return f"`{markdown_code(source.ref)}`"


def describe_license(source: SourceInfo) -> str:
    """Describe the license, or that the source does not name one."""
    name = source.license_name or source.license
    if not name:
        return "not known: the source's folder does not name it"
    if source.license_link:
        return markdown_link(name, source.license_link)
    return f"{markdown(name)}, as the source's"


def describe_maker(quantization: Quantization, recipe: str) -> str:
    """Describe who quantized, as the end of a sentence on the weights."""
    if not isinstance(quantization, AdoptedQuantization):
        return f"quantized by the recipe `{markdown_code(recipe)}`"
    if quantization.is_source:
        return "with unchanged weights and other arguments"
    return f"quantized elsewhere ({markdown(quantization.made_by)})"


def describe_optimization(quantization: Quantization, result: QuantizeResult) -> str:
    """Describe the quantization of the linear layers."""
    if isinstance(quantization, AdoptedQuantization):
        return markdown(quantization.method_description)
    modules = result.quantized_modules
    count = f" of {modules} linear layers" if modules else " of the linear layers"
    words = quantization.format_description(result.group_size)
    return f"{words}{count}. {quantization.method_description}".strip()


def describe_calibration(quantization: Quantization, result: QuantizeResult) -> str:
    """Describe the calibration; '' if the recipe needs no data."""
    calibration = quantization.calibration
    if not calibration:
        return ""
    name = str(calibration.dataset)
    data = "the texts that `prepare` carries" if name == "builtin" else f"`{markdown_code(name)}`"
    blocks = result.calibration_blocks or calibration.samples
    return f"Calibrated with {blocks} blocks of {calibration.max_tokens} tokens from {data}."


def describe_kv_cache(deployable: Deployable, quantization: Quantization) -> str:
    """Describe the KV cache's type and its effect on attention.

    With an FP8 cache on a GPU, vLLM also computes attention in FP8, with one scale per layer. The
    scales are 1.0 unless the recipe stores scales of keys and values.
    """
    dtype = str(deployable.serving.engine_arguments.get(KV_DTYPE, "auto"))
    name = f"`{markdown_code(dtype)}`"
    if not dtype.startswith("fp8") or deployable.accelerator != "cuda":
        return name
    scales = (
        "queries' scales are 1.0, keys' and values' are calibrated"
        if quantization.kv_cache_strategy
        else "the scales of queries, keys and values are 1.0"
    )
    return f"{name}, and so is attention: queries are quantized as well; {scales}"


def describe_speculation(deployable: Deployable) -> str:
    """Describe the draft model and the acceptance; '' without speculative decoding."""
    speculative = deployable.serving.speculative
    if speculative is None:
        return ""
    words = markdown_code(speculative.words(deployable.serving.engine))
    return f"`{words}`" + (" (`DRAFT` is its folder)" if speculative.model else "")


def describe_noise(checked: CheckWeightsResult) -> str:
    """Describe the weights' distance from the source's; '' if not measured."""
    if outputs := checked.outputs:
        return (
            f"Outputs over {outputs.tokens} tokens: {outputs.divergence_nats:.3f} nats a token "
            f"from the source's, the same next token in {outputs.same_next_token:.0%}."
        )
    noise = checked.sqnr
    if noise is None or noise.median_db is None:
        return ""
    return (
        f"Signal to quantization noise of the weights: {noise.median_db:.1f} dB in the median "
        "layer (every layer's is in the bundle)."
    )


def describe_hardware(hardware: Hardware) -> str:
    """Describe the machine."""
    if hardware.accelerator == "cpu":
        features = "".join(f", {name}" for name in hardware.cpu_features or ())
        cores = hardware.cores or "?"
        return markdown(f"CPU ({hardware.cpu or 'unknown'}, {cores} cores{features})")
    return markdown(hardware.gpu or "unknown hardware")
