"""Quantizes a whole model with llm-compressor and calibration data.

In compressed-tensors' checkpoint format. What needs no data is streamed (workers/fp8_stream).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pipeline.checkpoint.ignored_modules import is_ignored
from pipeline.core.errors import StageError
from pipeline.core.events import Progress
from pipeline.inspection.divisibility import dividing_group_size
from pipeline.workers.calibration_blocks import block_facts, calibration_blocks
from pipeline.workers.compute_dtype import ComputeDtype
from pipeline.workers.moe_experts import (
    ExpertTokenCounter,
    check_experts,
    load_with_separate_experts,
)
from pipeline.workers.protocol import versions_of

# How a group's range is found. Both look at the weights alone, anew every time.
OBSERVERS = {"minmax": "memoryless_minmax", "mse": "memoryless_mse"}
LIBRARIES = ("llmcompressor", "compressed-tensors", "transformers", "torch")
"""Those whose change can change the weights."""


def quantize_whole_model(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Load the model, quantize it, and save it.

    Raises:
        StageError: the architecture, the group sizes or the calibration texts do not suit.
    """
    import torch
    from transformers import AutoTokenizer, set_seed

    quantization = spec["quantization"]
    calibration = quantization["calibration"]
    trust = spec["trust_remote_code"]
    set_seed(calibration["seed"])
    progress.note("loading the checkpoint")
    model = load_model(spec["checkpoint"], trust)
    compute = ComputeDtype(spec.get("compute_dtype"))
    compute.widen(model)
    tokenizer = AutoTokenizer.from_pretrained(spec["checkpoint"], trust_remote_code=trust)
    group_size = dividing_group_size(quantization, linear_columns(model, quantization["ignore"]))
    wanted = quantization.get("group_size")
    if group_size is not None and wanted is not None and group_size != wanted:
        progress.note(
            f"group size {wanted} does not divide every layer's columns; using {group_size}"
        )
    modifiers = modifiers_of(quantization, group_size, smoothed_layers(model))
    follow_bars(progress, quantization["kind"])
    facts: dict[str, Any] = {"scheme": quantization.get("scheme"), "group_size": group_size}
    if not torch.accelerator.is_available():
        leave_memory_unpinned()
    blocks = calibration_blocks(calibration, spec["calibration_file"], tokenizer, progress)
    tokens = ExpertTokenCounter(model)
    calibrate(model, modifiers, blocks, calibration["batch_size"])
    facts |= {**block_facts(blocks), **tokens.check_counts()}
    compute.narrow(model)
    progress.note("saving the quantized checkpoint")
    model.save_pretrained(output, save_compressed=True)
    tokenizer.save_pretrained(output)
    return {
        **{key: value for key, value in facts.items() if value is not None},
        "versions": versions_of(*LIBRARIES),
        "quantized_modules": quantized_modules(model),
    }


def load_model(checkpoint: str, trust: bool) -> Any:
    """The model, with every expert's matrices as linear layers of their own.

    Raises:
        StageError: transformers does not know the architecture, or its experts cannot be
            calibrated.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=trust)
        check_experts(config, trust, where=f"{checkpoint}/config.json")
        return load_with_separate_experts(checkpoint, config, trust)
    except ValueError as error:
        if "does not recognize this architecture" not in str(error):
            raise
        raise StageError(
            f"the quantizer does not support this architecture: {str(error).splitlines()[0]}",
            where=f"{checkpoint}/config.json, key model_type",
            hint="a newer interpreter can be named in the settings file: "
            "environments: {quantize: {python: PATH}} (docs/reference/settings.md)",
        ) from error


def smoothed_layers(model: Any) -> list[tuple[list[str], str]] | None:
    """What SmoothQuant scales together, where llm-compressor's own table is wrong; else None.

    Gemma 2 and 3 have a norm of its own before the MLP, and `post_attention_layernorm`, which the
    table takes for it, after the attention.
    """
    before_mlp = "pre_feedforward_layernorm"
    if not any(name.endswith(f".{before_mlp}") for name, _ in model.named_modules()):
        return None
    return [
        (["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$"], "re:.*input_layernorm$"),
        (["re:.*gate_proj$", "re:.*up_proj$"], f"re:.*{before_mlp}$"),
    ]


def modifiers_of(
    quantization: dict[str, Any],
    group_size: int | None,
    smoothed: list[tuple[list[str], str]] | None,
) -> list[Any]:
    """llm-compressor's modifiers for the recipe, in the order in which they run.

    Args:
        group_size: columns that share a scale, where the recipe leaves a choice.
        smoothed: layers and the norm before them, for SmoothQuant; None for its own table.
    """
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    kind, ignore = quantization["kind"], quantization["ignore"]
    if kind == "preset":
        scales = kv_cache_scales() if quantization["kv_cache_scales"] else None
        return [
            QuantizationModifier(
                targets="Linear",
                scheme=quantization["scheme"],
                ignore=ignore,
                kv_cache_scheme=scales,
            )
        ]
    if kind == "awq":
        groups = weights_in_groups(
            quantization["bits"],
            group_size,
            symmetric=quantization["symmetric"],
            observer=OBSERVERS[quantization["observer"]],
        )
        return [
            AWQModifier(n_grid=quantization["grid_points"]),
            QuantizationModifier(config_groups=groups, ignore=ignore),
        ]
    made: list[Any] = []
    if quantization["smoothing_strength"] is not None:
        strength = quantization["smoothing_strength"]
        made.append(SmoothQuantModifier(smoothing_strength=strength, mappings=smoothed))
    how: dict[str, Any] = {"targets": "Linear", "scheme": quantization["scheme"]}
    if group_size is not None:
        how = {"config_groups": weights_in_groups(4, group_size, symmetric=True)}
    made.append(GPTQModifier(dampening_frac=quantization["dampening"], ignore=ignore, **how))
    return made


def weights_in_groups(
    bits: int, group_size: int | None, *, symmetric: bool, observer: str = OBSERVERS["minmax"]
) -> dict[str, Any]:
    """A scheme of whole-number weights that share a scale by groups of columns."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    weights = QuantizationArgs(
        num_bits=bits,
        type="int",
        symmetric=symmetric,
        strategy="group",
        group_size=group_size,
        observer=observer,
    )
    return {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}


def kv_cache_scales() -> Any:
    """An FP8 KV cache with one static scale a layer, which vLLM reads as k_scale and v_scale."""
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(
        num_bits=8,
        type="float",
        strategy="tensor",
        symmetric=True,
        dynamic=False,
        observer="static_minmax",
    )


def calibrate(model: Any, modifiers: list[Any], blocks: list[list[int]], batch_size: int) -> None:
    """Run the modifiers, layer by layer, over the blocks."""
    from datasets import Dataset
    from llmcompressor import oneshot

    samples = [{"input_ids": block, "attention_mask": [1] * len(block)} for block in blocks]
    oneshot(
        model=model,
        dataset=Dataset.from_list(samples),
        recipe=modifiers,
        max_seq_length=len(blocks[0]),
        num_calibration_samples=len(blocks),
        batch_size=batch_size,
        shuffle_calibration_samples=False,
    )


def linear_columns(model: Any, ignore: list[str]) -> set[int]:
    """Columns of the linear layers that are quantized."""
    import torch

    return {
        module.in_features
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not is_ignored(name, ignore)
    }


def leave_memory_unpinned() -> None:
    """llm-compressor 0.14 pins cached activations even without an accelerator, which fails."""
    from llmcompressor.pipelines.cache import IntermediatesCache

    IntermediatesCache.pin_memory = lambda self, *args, **kwargs: None


def follow_bars(progress: Progress, kind: str) -> None:
    """Turn the library's own progress bars into events: it offers no other hook.

    The sequential pipeline names its bars ``(layer/layers): ...``; in the end there is one over
    all modules.
    """
    import tqdm.std

    original = tqdm.std.tqdm.update
    layer_pattern = re.compile(r"\((\d+)/(\d+)\)")

    def update(bar: Any, n: float | None = 1) -> Any:
        shown = original(bar, n)
        description = str(bar.desc or "")
        if match := layer_pattern.search(description):
            progress.advance(f"quantize ({kind})", int(match[1]), int(match[2]), "layers")
        elif description.startswith("Compressing") and bar.total:
            progress.advance("compress", int(bar.n), int(bar.total), "modules")
        return shown

    tqdm.std.tqdm.update = update


def quantized_modules(model: Any) -> int:
    """How many modules' weights are quantized; attention may have a scheme for its cache alone."""
    schemes = [getattr(module, "quantization_scheme", None) for module in model.modules()]
    return sum(scheme is not None and scheme.weights is not None for scheme in schemes)
