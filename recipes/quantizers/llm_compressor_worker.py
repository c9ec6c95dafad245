"""Worker: AWQ, GPTQ and calibrated presets, by llm-compressor on a whole model.

Recipes without calibration are cast file by file (model_free_worker).
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

from pipeline.core.errors import PrepareError, StageError
from pipeline.core.events import Progress
from pipeline.core.worker_protocol import versions_of
from recipes.checkpoints.weight_files import read_headers, read_json
from recipes.group_sizes import dividing_group_size
from recipes.ignored_modules import is_ignored, to_expression
from recipes.quantizers.calibration_blocks import block_facts, calibration_blocks
from recipes.quantizers.compute_dtype import ComputeDtype
from recipes.quantizers.moe_experts import (
    ExpertTokenCounter,
    check_experts,
    load_with_separate_experts,
)
from recipes.quantizers.mtp_head import carry_mtp
from recipes.quantizers.text_mappings import awq_mappings, smoothquant_mappings

# How a group's range is found. Both read the weights alone, again every time.
OBSERVERS = {"minmax": "memoryless_minmax", "mse": "memoryless_mse"}
LIBRARIES = ("llmcompressor", "compressed-tensors", "transformers", "torch")
"""Libraries whose change can change the weights."""
TRIAL_BLOCKS, TRIAL_TOKENS = 2, 64
LAYER = re.compile(r"(?!.*(?:vis|aud|image)).*?\.layers\.(\d+)\.(.*)")
EXPERT = re.compile(r"(?<=\.)\d+\.")


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Load the model, quantize it, and save it into `output`.

    Args:
        spec: as in `Quantization.worker`.

    Returns:
        facts of QuantizeResult, with the digest of the calibration texts.
    """
    import torch
    from transformers import AutoTokenizer, set_seed

    quantization = spec["quantization"]
    calibration = quantization["calibration"]
    trust = spec["trust_remote_code"]
    tokenizer = AutoTokenizer.from_pretrained(spec["checkpoint"], trust_remote_code=trust)
    blocks = calibration_blocks(calibration, spec["calibration_file"], tokenizer, progress)
    if not torch.accelerator.is_available():
        leave_memory_unpinned()
    try_first_layers(spec, tokenizer, blocks, progress)
    set_seed(calibration["seed"])
    progress.note("loading the checkpoint")
    model = load_model(spec["checkpoint"], trust)
    compute = ComputeDtype(spec.get("compute_dtype"))
    compute.widen(model)
    group_size = group_size_of(spec, model)
    wanted = quantization.get("group_size")
    if group_size is not None and wanted is not None and group_size != wanted:
        progress.note(
            f"group size {wanted} does not divide every layer's columns; using {group_size}"
        )
    follow_bars(progress, quantization["kind"])
    tokens = ExpertTokenCounter(model)
    chosen = modifiers(quantization, model, group_size)
    calibrate(model, tokenizer, chosen, blocks, calibration["batch_size"])
    counts = tokens.check_counts()
    compute.narrow(model)
    progress.note("saving the quantized checkpoint")
    model.save_pretrained(output, save_compressed=True)
    tokenizer.save_pretrained(output)
    layers = model.config.get_text_config().num_hidden_layers
    carry_mtp(Path(spec["checkpoint"]), output, layers, quantization["ignore"], progress)
    # Attention may quantize its cache alone.
    schemes = [getattr(module, "quantization_scheme", None) for module in model.modules()]
    return {
        "scheme": quantization.get("scheme"),
        "group_size": group_size,
        **block_facts(blocks),
        **counts,
        "versions": versions_of(*LIBRARIES),
        "quantized_modules": sum(bool(scheme and scheme.weights) for scheme in schemes),
    }


def modifiers(quantization: dict[str, Any], model: Any, group_size: int | None) -> list[Any]:
    """Return llm-compressor's modifiers, in the order in which they run."""
    from compressed_tensors.quantization import preset_name_to_scheme
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    common = {"ignore": quantization["ignore"], "kv_cache_scheme": kv_cache_scheme(quantization)}
    if quantization["kind"] == "preset":
        # A named module's scheme precedes the one of its class, here and in vLLM.
        others = {
            scheme: [word if (to := to_expression(word)) is None else f"re:{to}" for word in words]
            for scheme, words in quantization["other_schemes"].items()
        }
        scheme = {**others, quantization["scheme"]: ["Linear"]}
        return [QuantizationModifier(scheme=scheme, **common)]
    if quantization["kind"] == "awq":
        groups = weights_in_groups(
            quantization["bits"],
            group_size,
            symmetric=quantization["symmetric"],
            observer=OBSERVERS[quantization["observer"]],
        )
        return [
            AWQModifier(mappings=awq_mappings(model), n_grid=quantization["grid_points"]),
            QuantizationModifier(config_groups=groups, **common),
        ]
    strength = quantization["smoothing_strength"]
    smoothing = []
    if strength is not None:
        mappings = smoothquant_mappings(model)
        smoothing.append(SmoothQuantModifier(smoothing_strength=strength, mappings=mappings))
    groups = {"group_0": preset_name_to_scheme("W8A8", ["Linear"])}
    if group_size is not None:
        groups = weights_in_groups(4, group_size, symmetric=True)
    gptq = GPTQModifier(dampening_frac=quantization["dampening"], config_groups=groups, **common)
    return [*smoothing, gptq]


def group_size_of(spec: dict[str, Any], model: Any) -> int | None:
    """Return the first group size that divides all layers to quantize; StageError if none does."""
    import torch

    ignore = spec["quantization"]["ignore"]
    columns = {
        module.in_features
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not is_ignored(name, ignore)
    }
    return dividing_group_size(spec["group_sizes"], columns)


def try_first_layers(
    spec: dict[str, Any],
    tokenizer: Any,
    blocks: list[list[int]],
    progress: Progress,
) -> None:
    """Quantize the first layers, up to one of each kind, with little text; discard the result.

    Raises:
        StageError: the library fails on this architecture. On the whole model it would fail too,
            after an hour.
    """
    checkpoint = Path(spec["checkpoint"])
    layers = layers_of_each_kind(checkpoint)
    progress.note(f"trying the recipe on the first {layers} layers")
    model = load_model(spec["checkpoint"], spec["trust_remote_code"], layers)
    ComputeDtype(spec.get("compute_dtype")).widen(model)
    chosen = modifiers(spec["quantization"], model, group_size_of(spec, model))
    few = [block[:TRIAL_TOKENS] for block in blocks[:TRIAL_BLOCKS]]
    try:
        calibrate(model, tokenizer, chosen, few, 1)
    except PrepareError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise StageError(
            f"llm-compressor cannot quantize {type(model).__name__} by this recipe: "
            f"{type(error).__name__}: {str(error)[:300]}",
            where=f"{checkpoint / 'config.json'}, key architectures",
            hint="use a recipe that needs no data, such as fp8-dynamic",
        ) from error


def layers_of_each_kind(checkpoint: Path) -> int:
    """Return how many of the first layers contain one of each kind.

    A kind is what config.json names it (`layer_types`), and its tensors' names: dense or experts.
    """
    config = read_json(checkpoint / "config.json")
    named = (config.get("text_config") or config).get("layer_types") or []
    tensors: dict[int, set[str]] = {}
    for header in read_headers(checkpoint).values():
        for name in header.tensors:
            if found := LAYER.match(name):
                tensors.setdefault(int(found[1]), set()).add(EXPERT.sub("", found[2]))
    total = (config.get("text_config") or config).get("num_hidden_layers") or len(tensors)
    seen: set[tuple[str, frozenset[str]]] = set()
    needed = 1
    for number in sorted(each for each in tensors if each < total):
        kind = named[number] if number < len(named) else ""
        if (key := (kind, frozenset(tensors[number]))) not in seen:
            seen.add(key)
            needed = number + 1
    return needed


def load_model(checkpoint: str, trust: bool, layers: int | None = None) -> Any:
    """Return the model, with every expert's matrices as separate linear layers.

    Args:
        layers: of its first layers alone, for a trial; None for all.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=trust)
        if layers is not None:
            shorten(config.get_text_config(), layers)
        check_experts(config, trust, where=f"{checkpoint}/config.json")
        return load_with_separate_experts(checkpoint, config, trust, saved=layers is None)
    except ValueError as error:
        if "does not recognize this architecture" not in str(error):
            raise
        raise StageError(
            f"the quantizer does not support this architecture: {str(error).splitlines()[0]}",
            where=f"{checkpoint}/config.json, key model_type",
            hint="a newer interpreter can be named in the settings file: "
            "environments: {quantize: {python: PATH}} (docs/reference/settings.md)",
        ) from error


def shorten(config: Any, layers: int) -> None:
    """Have a model's configuration describe its first layers alone."""
    total = config.num_hidden_layers
    for name, value in vars(config).items():  # layer_types, mlp_layer_types and the like
        if isinstance(value, list) and len(value) == total and name.startswith(("layer", "mlp_l")):
            setattr(config, name, value[:layers])
    config.num_hidden_layers = layers


def weights_in_groups(
    bits: int,
    group_size: int | None,
    *,
    symmetric: bool,
    observer: str = OBSERVERS["minmax"],
) -> dict[str, Any]:
    """Return a scheme of integer weights that share a scale by groups of columns."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    weights = QuantizationArgs(
        num_bits=bits,
        type="int",
        symmetric=symmetric,
        strategy="group",
        group_size=group_size,
        observer=observer,
    )
    return {
        "group_0": QuantizationScheme(targets=["Linear"], weights=weights, format="pack-quantized")
    }


def kv_cache_scheme(quantization: dict[str, Any]) -> Any:
    """Return an FP8 KV cache with static scales, which vLLM reads as k_scale and v_scale.

    llm-compressor calibrates after AWQ has scaled: each modifier has its own pass.
    """
    from compressed_tensors.quantization import QuantizationArgs

    unit = quantization["kv_cache_scales"]
    if unit is None:
        return None
    return QuantizationArgs(
        num_bits=8,
        type="float",
        strategy="attn_head" if unit == "head" else "tensor",
        symmetric=True,
        dynamic=False,
        observer="static_minmax",
    )


def calibrate(
    model: Any, tokenizer: Any, modifiers: list[Any], blocks: list[list[int]], batch_size: int
) -> None:
    """Run the modifiers, layer by layer, over the blocks."""
    from datasets import Dataset
    from llmcompressor import oneshot

    samples = [{"input_ids": block, "attention_mask": [1] * len(block)} for block in blocks]
    oneshot(
        model=model,
        processor=tokenizer,  # else it loads one, which needs torchvision for a model of images
        dataset=Dataset.from_list(samples),
        recipe=modifiers,
        max_seq_length=len(blocks[0]),
        num_calibration_samples=len(blocks),
        batch_size=batch_size,
        shuffle_calibration_samples=False,
    )


def leave_memory_unpinned() -> None:
    """Disable pinned memory: llm-compressor 0.14 pins cached activations, which fails on a CPU."""
    from llmcompressor.pipelines.cache import IntermediatesCache

    IntermediatesCache.pin_memory = lambda self, *args, **kwargs: None


def follow_bars(progress: Progress, kind: str) -> None:
    """Convert the library's progress bars to events: it offers no other hook.

    The sequential pipeline names its bars ``(layer/layers): ...``; a last one is over all modules.
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
        elif description.startswith("Quantizing") and bar.total:
            progress.advance(f"quantize ({kind})", int(bar.n), int(bar.total), "weight files")
        return shown

    tqdm.std.tqdm.update = update
