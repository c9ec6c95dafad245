"""Run by mixed_precision.py inside of the quantizing environment: `ROOT ASKED.json`.

Prints the mean divergence of each allocation as one JSON line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, sys.argv[1])
BLOCK = 256
CALIBRATED = 16
CHUNK = 512


def fp8(values: Any) -> Any:
    """Round rows to FP8 with a scale each."""
    wide = values.float()
    scale = (wide.abs().amax(-1, keepdim=True) / 448).clamp_min(1e-12)
    return ((wide / scale).to(torch.float8_e4m3fn).float() * scale).to(values.dtype)


def wide_model(checkpoint: str) -> Any:
    """Return a model in float32: many CPUs emulate bf16, which takes up to 50 times as long."""
    from recipes.quantizers.models import ComputeDtype, load_model

    model = load_model(checkpoint, False)
    ComputeDtype("float32").widen(model)
    return model


def calibrated_model(asked: dict[str, Any]) -> tuple[Any, list[list[int]]]:
    """Return the model after AWQ, not compressed, and the blocks that it did not see."""
    from transformers import AutoTokenizer, set_seed

    from recipes.quantizers import llm_compressor_worker as worker
    from recipes.quantizers.calibration import calibration_blocks
    from recipes.quantizers.llm_compressor import leave_memory_unpinned
    from recipes.quantizers.modifiers import modifiers

    class Quiet:
        def note(self, text: str) -> None:
            print(text, file=sys.stderr, flush=True)

        def advance(self, *_: object) -> None:
            pass

    quantization = asked["quantization"]
    few = quantization["calibration"] | {
        "dataset": "builtin",
        "column": "text",
        "samples": CALIBRATED + asked["blocks"],
        "max_tokens": BLOCK,
    }
    tokenizer = AutoTokenizer.from_pretrained(asked["checkpoint"])
    blocks = calibration_blocks(few, asked["texts"], tokenizer, Quiet())
    seen = blocks[:CALIBRATED]
    unseen = blocks[CALIBRATED : CALIBRATED + asked["blocks"]]
    leave_memory_unpinned()
    set_seed(few["seed"])
    model = wide_model(asked["checkpoint"])
    spec = {"quantization": quantization, "group_sizes": [128, 64, 32]}
    chosen = modifiers(quantization, model, worker.group_size_of(spec, model))
    worker.calibrate(model, tokenizer, chosen, seen, CALIBRATED)
    return model, unseen


def hidden(model: Any, blocks: Any) -> Any:
    """Return the last hidden states: tokens x width."""
    with torch.no_grad():
        states = [model.model(block[None]).last_hidden_state[0] for block in blocks]
    return torch.cat(states)


def divergence(head: Any, ours: Any, theirs: Any) -> float:
    """Return the mean divergence of `theirs` from `ours`, in nats a token."""
    total = 0.0
    for begin in range(0, len(ours), CHUNK):
        before, after = (
            torch.nn.functional.linear(states[begin : begin + CHUNK].float(), head).log_softmax(-1)
            for states in (ours, theirs)
        )
        total += float((before.exp() * (before - after)).sum())
    return total / len(ours)


def values_of(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each quantized module's name, 4-bit values, and values in FP8."""
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize

    for name, module in model.named_modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None or scheme.weights is None:
            continue
        weight = module.weight.data
        zero = getattr(module, "weight_zero_point", None)
        four = fake_quantize(weight, module.weight_scale, zero, scheme.weights)
        yield name, four.detach().clone(), fp8(weight)


def main() -> None:
    """Measure every allocation."""
    asked = json.loads(Path(sys.argv[2]).read_text())
    quantized, unseen = calibrated_model(asked)
    blocks = torch.tensor(unseen)
    model = wide_model(asked["checkpoint"])
    head = model.get_output_embeddings().weight.float()
    ours = hidden(model, blocks)
    # Norms and other unquantized tensors took AWQ's scales, too.
    scaled = quantized.state_dict()
    model.load_state_dict({name: scaled[name] for name in model.state_dict()})
    four = {}
    eight = {}
    for name, values, wide in values_of(quantized):
        four[name] = values
        eight[name] = wide
    modules = {name: model.get_submodule(name) for name in four}
    in_fp8: set[str] = set()

    def round_input(name: str) -> Callable[..., Any]:
        return lambda module, inputs: (fp8(inputs[0]),) if name in in_fp8 else None

    for name, module in modules.items():
        module.register_forward_pre_hook(round_input(name))
    losses = {}
    print("rescaled", divergence(head, ours, hidden(model, blocks)), file=sys.stderr, flush=True)
    for allocation, given in asked["allocations"].items():
        in_fp8.clear()
        in_fp8.update(given)
        for name, module in modules.items():
            module.weight.data = eight[name] if name in in_fp8 else four[name]
        losses[allocation] = divergence(head, ours, hidden(model, blocks))
        print(allocation, losses[allocation], file=sys.stderr, flush=True)
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
