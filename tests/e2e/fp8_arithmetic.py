"""Run in the quantize environment: casts a checkpoint to FP8 and compares it with plain arithmetic.

    python fp8_arithmetic.py JOB.json

Prints one line of JSON. Not a test itself: tests/e2e/test_model_free.py starts it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from safetensors.torch import load_file, save_file

from prepare.errors import StageError
from prepare.events import NullProgress
from recipes.quantizers.model_free_worker import run

BLOCK = 128


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    source, output = Path(job["source"]), Path(job["output"])
    if "make" in job:
        make(source, **job["make"])
    output.mkdir()
    quantization = {"kind": "preset", "scheme": job["scheme"], "ignore": ["lm_head"]}
    spec = {"checkpoint": str(source), "quantization": quantization, "group_sizes": []}
    try:
        facts = run(spec, NullProgress(), output)
    except StageError as error:
        print(json.dumps({"refused": [type(error).__name__, str(error).split("'")[1]]}))
        return
    before, after = read(source), read(output)
    differ, checked = [], 0
    for name, weight in before.items():
        scale = after.get(f"{name}_scale")
        if scale is None:
            if name in after and not same(after[name], weight):
                differ.append(name)
            continue
        checked += 1
        numbers, wanted_scale = cast(weight, job["scheme"])
        stored = after[name].float() + 0.0  # -0 is 0
        if not same(stored, numbers.float() + 0.0) or not same(scale, wanted_scale):
            differ.append(name)
    config = json.loads((output / "config.json").read_text())
    found = {"facts": facts, "differ": differ, "checked": checked, "config": config}
    print(json.dumps(found))


def cast(weight: Any, scheme: str) -> tuple[Any, Any]:
    """Return e4m3 numbers and scales: largest magnitude of a row or block / 448, rounded once."""
    rows, columns = weight.shape
    if scheme == "FP8_BLOCK":
        blocks = [
            [weight[r : r + BLOCK, c : c + BLOCK] for c in range(0, columns, BLOCK)]
            for r in range(0, rows, BLOCK)
        ]
        scales = torch.stack(
            [torch.stack([scale_of(b.abs().max()) for b in row]) for row in blocks]
        )
        wide = scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    else:
        scales = wide = scale_of(weight.abs().amax(1, keepdim=True))
    return (weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn), scales


def scale_of(largest: Any) -> Any:
    scale = largest / 448
    return torch.where(scale == 0, torch.finfo(largest.dtype).eps, scale)


def same(one: Any, other: Any) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool(torch.equal(one, other))


def read(folder: Path) -> dict[str, Any]:
    return {
        name: tensor
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def make(folder: Path, *, tied: bool, stored_head: bool, other_head: bool = False) -> None:
    """A tiny Llama whose matrices have every kind of row, in several files."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=192,
        intermediate_size=330,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        vocab_size=96,
        tie_word_embeddings=tied,
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("proj.weight"):
                weight[0] = 0.0
                weight[1] = -0.0
                weight[2] = 1e-40  # denormal
                weight[3] = torch.finfo(torch.bfloat16).max
                weight[4] = 0.02
                weight[5, 7] = -3e4
    model.save_pretrained(folder, max_shard_size="200KB")
    if stored_head:
        index_file = folder / "model.safetensors.index.json"
        index = json.loads(index_file.read_text())
        head = model.model.embed_tokens.weight.detach().clone() + float(other_head)
        save_file({"lm_head.weight": head}, folder / "head.safetensors", metadata={"format": "pt"})
        index["weight_map"]["lm_head.weight"] = "head.safetensors"
        index_file.write_text(json.dumps(index))


if __name__ == "__main__":
    main()
