"""Worker: quantizes a checkpoint with llm-compressor, inside the `quantize` environment."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from pipeline.errors import StageError, UsageError
from pipeline.events import Progress
from pipeline.ignored_modules import is_ignored
from pipeline.workers.calibration_blocks import calibration_blocks


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`.

    Args:
        spec: checkpoint (folder), quantization (as in a recipe), calibration_file (JSONL or
            text, None for a Hub dataset), trust_remote_code.
        progress: hears of layers done.
        output: an empty folder.

    Returns:
        facts for the record: what was quantized, with what, and the digest of the calibration.

    Raises:
        StageError: the group sizes do not divide, or there are too few calibration tokens.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    quantization = spec["quantization"]
    calibration = quantization.get("calibration")
    set_seed(calibration["seed"] if calibration else 0)
    progress.note("loading the checkpoint")
    trust = spec["trust_remote_code"]
    try:
        model = AutoModelForCausalLM.from_pretrained(
            spec["checkpoint"], dtype="auto", trust_remote_code=trust
        )
    except ValueError as error:
        if "does not recognize this architecture" not in str(error):
            raise
        raise StageError(
            f"the quantizer does not support this architecture: {str(error).splitlines()[0]}",
            where=f"{spec['checkpoint']}/config.json, key model_type",
            cure="a newer interpreter can be named in the settings file: "
            "environments: {quantize: {python: PATH}} (docs/environments.md)",
        ) from error
    tokenizer = AutoTokenizer.from_pretrained(spec["checkpoint"], trust_remote_code=trust)
    follow_bars(progress, quantization["kind"])
    if quantization["kind"] == "preset":
        facts = apply_preset(model, quantization)
    elif quantization["kind"] == "awq":
        blocks = calibration_blocks(calibration, spec["calibration_file"], tokenizer, progress)
        facts = apply_awq(model, quantization, blocks, progress)
    else:
        raise UsageError(f"no quantizer for the kind '{quantization['kind']}'")
    progress.note("saving the quantized checkpoint")
    model.save_pretrained(output, save_compressed=True)
    tokenizer.save_pretrained(output)
    return {**facts, "versions": versions(), "quantized_modules": quantized_modules(model)}


def apply_preset(model: Any, quantization: dict[str, Any]) -> dict[str, Any]:
    """Quantize by a compressed-tensors preset that needs no data."""
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier

    modifier = QuantizationModifier(
        targets="Linear", scheme=quantization["scheme"], ignore=quantization["ignore"]
    )
    oneshot(model=model, recipe=modifier)
    return {"scheme": quantization["scheme"]}


def apply_awq(
    model: Any, quantization: dict[str, Any], blocks: list[list[int]], progress: Progress
) -> dict[str, Any]:
    """Search AWQ's scales over the calibration blocks, then quantize the weights in groups."""
    import torch
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier

    if not torch.accelerator.is_available():
        leave_memory_unpinned()
    group_size = dividing_group_size(model, quantization)
    if group_size != quantization["group_size"]:
        progress.note(
            f"group size {quantization['group_size']} does not divide every layer's columns; "
            f"using {group_size}"
        )
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(
            num_bits=quantization["bits"],
            type="int",
            symmetric=quantization["symmetric"],
            strategy="group",
            group_size=group_size,
        ),
    )
    samples = [{"input_ids": block, "attention_mask": [1] * len(block)} for block in blocks]
    oneshot(
        model=model,
        dataset=Dataset.from_list(samples),
        recipe=[
            AWQModifier(n_grid=quantization["grid_points"]),
            QuantizationModifier(config_groups={"group_0": scheme}, ignore=quantization["ignore"]),
        ],
        max_seq_length=len(blocks[0]),
        num_calibration_samples=len(blocks),
        batch_size=quantization["calibration"]["batch_size"],
        shuffle_calibration_samples=False,
    )
    return {
        "group_size": group_size,
        "calibration_blocks": len(blocks),
        "calibration_tokens": sum(map(len, blocks)),
        "calibration_digest": hashlib.sha256(json.dumps(blocks).encode()).hexdigest(),
    }


def dividing_group_size(model: Any, quantization: dict[str, Any]) -> int:
    """The first of the recipe's group sizes that divides every quantized layer's columns.

    Raises:
        StageError: none does; the columns in the way are named.
    """
    import torch

    columns = {
        module.in_features
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not is_ignored(name, quantization["ignore"])
    }
    wanted = [quantization["group_size"], *quantization["smaller_group_sizes"]]
    for size in wanted:
        if all(count % size == 0 for count in columns):
            return int(size)
    raise StageError(
        f"no group size of {wanted} divides layers with {sorted(columns)} columns",
        where="recipe key quantization.group_size",
        cure="use a recipe whose quantization.smaller_group_sizes has one that divides them",
    )


def leave_memory_unpinned() -> None:
    """llm-compressor 0.14 pins cached activations even without an accelerator, which fails."""
    from llmcompressor.pipelines.cache import IntermediatesCache

    IntermediatesCache.pin_memory = lambda self, *args, **kwargs: None


def follow_bars(progress: Progress, kind: str) -> None:
    """Turn the library's own progress bars into events: it offers no other hook.

    The sequential pipeline names its bars ``(layer/layers): ...``; data-free recipes have one
    bar over all modules.
    """
    import tqdm.std

    original = tqdm.std.tqdm.update
    layer_pattern = re.compile(r"\((\d+)/(\d+)\)")

    def update(bar: Any, n: float | None = 1) -> Any:
        shown = original(bar, n)
        description = str(bar.desc or "")
        if match := layer_pattern.search(description):
            progress.advance(f"quantize ({kind})", int(match[1]), int(match[2]), "layers")
        elif kind == "preset" and description.startswith("Compressing") and bar.total:
            progress.advance(f"quantize ({kind})", int(bar.n), int(bar.total), "modules")
        return shown

    tqdm.std.tqdm.update = update


def quantized_modules(model: Any) -> int:
    """How many modules carry a quantization scheme."""
    return sum(
        getattr(module, "quantization_scheme", None) is not None for module in model.modules()
    )


def versions() -> dict[str, str]:
    """Versions of the libraries whose change can change the weights."""
    from importlib.metadata import version

    names = ("llmcompressor", "compressed-tensors", "transformers", "torch")
    return {name: version(name) for name in names}


if __name__ == "__main__":
    from pipeline.workers.protocol import main

    main(run)
