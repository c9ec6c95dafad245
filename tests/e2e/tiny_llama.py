"""Writes a tiny random Llama as other programs release it: FP8 in blocks, INT4, MXFP4, ...

Run in the environment `quantize`: python tiny_llama.py FOLDER. Weights are multiples that the
narrow formats hold, except for rounding; `plain` has what they were made of.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

SCHEMES = ("FP8_DYNAMIC", "FP8", "W4A16", "W8A16", "NVFP4A16", "MXFP4")
LAYERS, HIDDEN, INNER, WORDS, BLOCK = 2, 256, 384, 512, 128


def main(folder: Path) -> None:
    """Write `plain`, `with-mtp`, `fp8-block` and a folder for each scheme."""
    import torch
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=WORDS,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    plain = folder / "plain"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(plain)
    write_tokenizer(plain)
    tensors = load_file(plain / "model.safetensors")
    head = {f"model.layers.{LAYERS}.{n}": torch.randn(64, 64).bfloat16() for n in HEAD}
    save(folder / "with-mtp", plain, tensors | head, None)
    save(folder / "fp8-block", plain, in_blocks(tensors), BLOCKS)
    for scheme in SCHEMES:
        model = AutoModelForCausalLM.from_pretrained(plain, dtype="auto")
        modifier = QuantizationModifier(targets="Linear", scheme=scheme, ignore=["lm_head"])
        data = {"dataset": samples(), "num_calibration_samples": 2} if scheme == "FP8" else {}
        leave_memory_unpinned()
        oneshot(model=model, recipe=[modifier], **data)
        model.save_pretrained(folder / scheme, save_compressed=True)
        write_tokenizer(folder / scheme)


HEAD = ("eh_proj.weight", "enorm.weight", "mlp.up_proj.weight")
BLOCKS = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
}


def in_blocks(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return DeepSeek's layout: FP8, and `weight_scale_inv` for each block of 128 x 128."""
    import torch

    made = {}
    for name, weight in tensors.items():
        if not name.endswith("_proj.weight"):
            made[name] = weight
            continue
        rows, columns = weight.shape
        blocks = weight.float().view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        scale = blocks.abs().amax((1, 3)) / 448
        narrow = (blocks / scale[:, None, :, None]).view(rows, columns)
        made |= {name: narrow.to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}
    return made


def save(folder: Path, plain: Path, tensors: dict[str, Any], quantization: Any) -> None:
    from safetensors.torch import save_file

    shutil.copytree(plain, folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if quantization:
        config = json.loads((plain / "config.json").read_text())
        config["quantization_config"] = quantization
        (folder / "config.json").write_text(json.dumps(config))


def write_tokenizer(folder: Path) -> None:
    """Write one that gives each of the first words a token."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    names = ["<unk>", "</s>", *(f"w{n}" for n in range(WORDS - 2))]
    tokenizer = Tokenizer(WordLevel({name: n for n, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
    fast.save_pretrained(folder)


def samples() -> Any:
    from datasets import Dataset

    row = {"input_ids": list(range(32)), "attention_mask": [1] * 32}
    return Dataset.from_list([row, row])


def leave_memory_unpinned() -> None:
    from llmcompressor.pipelines.cache import IntermediatesCache

    IntermediatesCache.pin_memory = lambda self, *args, **kwargs: None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
