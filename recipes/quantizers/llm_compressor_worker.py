"""Worker: AWQ, GPTQ and calibrated presets, by llm-compressor on a whole model."""

from __future__ import annotations

import json
import re
import traceback
from pathlib import Path
from typing import Any

from prepare.errors import PrepareError, StageError
from prepare.events import Progress
from prepare.worker_protocol import versions_of
from recipes.checkpoints.module_kind import module_kind
from recipes.checkpoints.same_tokens import check_same_tokens
from recipes.checkpoints.weight_files import INDEX, read_headers, read_json
from recipes.module_lists import is_listed
from recipes.quantizers.calibration import block_facts, calibration_blocks
from recipes.quantizers.kv_clipping import blocks_to_measure, measure_clipping
from recipes.quantizers.llm_compressor import LIBRARIES, follow_bars, leave_memory_unpinned
from recipes.quantizers.models import ComputeDtype, ExpertTokenCounter, load_model
from recipes.quantizers.modifiers import modifiers
from recipes.weight_format import dividing_group_size

TRIAL_BLOCKS = 2
TRIAL_TOKENS = 64
MTP_FILE = "model-mtp.safetensors"
LAYER = re.compile(r"(?!.*(?:vis|aud|image)).*?\.layers\.(\d+)\.(.*)")
EXPERT = re.compile(r"(?<=\.)\d+\.")


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Load the model, quantize it, and save it into `output`.

    `spec` is as in `Quantization.worker`. Returns facts of QuantizeResult.
    """
    import torch
    from transformers import AutoTokenizer, set_seed

    quantization = spec["quantization"]
    calibration = quantization["calibration"]
    trust = spec["trust_remote_code"]
    tokenizer = AutoTokenizer.from_pretrained(spec["checkpoint"], trust_remote_code=trust)
    check_same_tokens(tokenizer, Path(spec["checkpoint"]))
    samples = calibration["samples"]
    texts = calibration_blocks(
        calibration,
        spec["calibration_file"],
        tokenizer,
        progress,
        unseen=blocks_to_measure(samples) if quantization["kv_cache_scales"] else 0,
    )
    blocks = texts[:samples]
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
    clipping = None
    if quantization["kv_cache_scales"]:
        clipping = clipping_of(model, texts[samples:], progress)
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
        "kv_clipping": clipping,
        "versions": versions_of(*LIBRARIES),
        "quantized_modules": sum(bool(scheme and scheme.weights) for scheme in schemes),
    }


def clipping_of(model: Any, unseen: list[list[int]], progress: Progress) -> dict[str, Any] | None:
    """Return `KvClipping`; None where it cannot be measured, which is noted.

    It is a figure for the report: quantization of hours does not fail because of it.
    """
    if not unseen:
        progress.note(
            "what the scales of the KV cache clip was not measured: calibration took all texts"
        )
        return None
    try:
        return measure_clipping(model, unseen)
    except Exception as error:
        traceback.print_exc()
        progress.note(
            f"what the scales of the KV cache clip was not measured: {type(error).__name__}: "
            f"{str(error)[:200]}"
        )
        return None


def group_size_of(spec: dict[str, Any], model: Any) -> int | None:
    """Return the first size that divides all layers of the main format, else StageError."""
    import torch

    quantization = spec["quantization"]
    lists = quantization["other_schemes"].values()
    ignore = [*quantization["ignore"], *(word for words in lists for word in words)]
    columns = {
        module.in_features
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not is_listed(name, ignore)
    }
    return dividing_group_size(spec["group_sizes"], columns)


def try_first_layers(
    spec: dict[str, Any],
    tokenizer: Any,
    blocks: list[list[int]],
    progress: Progress,
) -> None:
    """Quantize the first layers, up to one of each kind, with little text; discard the result.

    StageError for an architecture on which the whole model would fail after an hour.
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

    A kind is its `layer_types` entry and its tensors' names.
    """
    config = read_json(checkpoint / "config.json")
    named = (config.get("text_config") or config).get("layer_types") or []
    tensors: dict[int, set[str]] = {}
    for header in read_headers(checkpoint).values():
        for name in header.tensors:
            if match := LAYER.match(name):
                tensors.setdefault(int(match[1]), set()).add(EXPERT.sub("", match[2]))
    total = (config.get("text_config") or config).get("num_hidden_layers") or len(tensors)
    seen: set[tuple[str, frozenset[str]]] = set()
    needed = 1
    for number in sorted(layer for layer in tensors if layer < total):
        kind = named[number] if number < len(named) else ""
        if (key := (kind, frozenset(tensors[number]))) not in seen:
            seen.add(key)
            needed = number + 1
    return needed


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


def carry_mtp(
    source: Path, output: Path, layers: int, ignore: list[str], progress: Progress
) -> None:
    """Copy the source's tensors for multi-token prediction (MTP) that the variant lacks.

    transformers neither loads nor saves them. `layers` is num_hidden_layers; DeepSeek's heads come
    after. What `ignore` has for them goes into config.json, so that the engine reads 16 bits.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    saved = {name: file for file, header in read_headers(output).items() for name in header.tensors}
    places = {
        name: file
        for file, header in read_headers(source).items()
        for name, tensor in header.tensors.items()
        if name not in saved and module_kind(name, len(tensor.shape), layers) == "mtp"
    }
    if not places:
        return
    tensors: dict[str, Any] = {}
    for file in sorted(set(places.values())):
        with safe_open(file, framework="pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in places if places[name] == file}
    save_file(tensors, output / MTP_FILE, metadata={"format": "pt"})
    files = {name: file.name for name, file in saved.items()} | dict.fromkeys(tensors, MTP_FILE)
    total = sum(file.stat().st_size for file in output.glob("*.safetensors"))
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (output / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")
    config = read_json(output / "config.json")
    modules = [name.rpartition(".")[0] for name in tensors]
    words = [word for word in ignore if any(is_listed(module, [word]) for module in modules)]
    listed = config["quantization_config"].setdefault("ignore", [])
    listed += [word for word in words if word not in listed]
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    progress.note(f"copied {len(tensors)} tensors of the head for multi-token prediction")
