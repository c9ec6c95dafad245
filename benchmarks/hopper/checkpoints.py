"""Checkpoints of Llama-3.1-8B's shapes with random values: BF16, FP8 per channel, 4 bits in groups.

    python benchmarks/hopper/checkpoints.py {bf16,fp8,w4a16} {8b,tiny} FOLDER

It needs torch, safetensors and transformers, so it runs in a serving environment. Values are drawn,
not zero: a GPU draws less power for zeros, and is then faster. vLLM's `--load-format dummy` draws
values that FP8 rounds to zero.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SHAPES: dict[str, dict[str, int]] = {
    "8b": {
        **{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
        **{"max_position_embeddings": 131072, "vocab_size": 128256},
    },
    "tiny": {
        **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
        **{"max_position_embeddings": 4096, "vocab_size": 4096},
    },
}
GROUP = 128
STDDEV = 0.02  # of weights, as Llama's own initialization has it
WEIGHTS: dict[str, dict[str, Any]] = {
    "fp8": {
        "format": "float-quantized",
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
        "input_activations": {
            **{"num_bits": 8, "type": "float", "strategy": "token"},
            **{"dynamic": True, "symmetric": True},
        },
    },
    "w4a16": {
        "format": "pack-quantized",
        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP},
    },
}


def main(kind: str, shape: dict[str, int], folder: Path) -> None:
    """Write the checkpoint, one file for each layer."""
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    places: dict[str, str] = {}

    def save(name: str, tensors: dict[str, torch.Tensor]) -> None:
        file = f"model-{name}.safetensors"
        save_file({key: value.cpu() for key, value in tensors.items()}, folder / file)
        places.update(dict.fromkeys(tensors, file))

    hidden, inner, words = (
        shape[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    heads = shape["num_attention_heads"] * shape["head_dim"]
    kv = shape["num_key_value_heads"] * shape["head_dim"]
    sizes = {
        **{"self_attn.q_proj": (heads, hidden), "self_attn.k_proj": (kv, hidden)},
        **{"self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, heads)},
        **{"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)},
        "mlp.down_proj": (hidden, inner),
    }

    def ones() -> torch.Tensor:
        return torch.ones(hidden, dtype=torch.bfloat16, device=device)

    for layer in range(shape["num_hidden_layers"]):
        of = f"model.layers.{layer}."
        tensors = {of + "input_layernorm.weight": ones()}
        tensors[of + "post_attention_layernorm.weight"] = ones()
        for name, (rows, columns) in sizes.items():
            for key, value in matrix(kind, rows, columns, device).items():
                tensors[f"{of}{name}.{key}"] = value
        save(f"{layer:02}", tensors)
    outer = {
        name: matrix("bf16", words, hidden, device)["weight"]
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    save("outer", {**outer, "model.norm.weight": ones()})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    write_tokenizer(folder, words)
    (folder / "config.json").write_text(json.dumps(config(kind, shape)))


def matrix(kind: str, rows: int, columns: int, device: str) -> dict[str, torch.Tensor]:
    """Return a layer's tensors, [rows, columns] unpacked, as compressed-tensors stores them."""
    if kind == "w4a16":
        packed = torch.randint(-(2**31), 2**31 - 1, (rows, columns // 8), device=device)
        scale = torch.full((rows, columns // GROUP), STDDEV / 4, dtype=torch.bfloat16)
        shape = torch.tensor([rows, columns])
        return {"weight_packed": packed.int(), "weight_scale": scale, "weight_shape": shape}
    weight = torch.randn(rows, columns, dtype=torch.bfloat16, device=device) * STDDEV
    if kind == "bf16":
        return {"weight": weight}
    scale = weight.abs().amax(1, keepdim=True).float() / torch.finfo(torch.float8_e4m3fn).max
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale.bfloat16()}


def config(kind: str, shape: dict[str, int]) -> dict[str, Any]:
    """Return config.json."""
    found: dict[str, Any] = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", **shape},
        **{"dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-5},
        **{"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        **{"rope_theta": 500000.0, "tie_word_embeddings": False},
        **{"bos_token_id": 0, "eos_token_id": 1, "attention_bias": False, "mlp_bias": False},
    }
    if kind != "bf16":
        group = {key: value for key, value in WEIGHTS[kind].items() if key != "format"}
        group["weights"] = {**group["weights"], "symmetric": True, "dynamic": False}
        found["quantization_config"] = {
            **{"quant_method": "compressed-tensors", "format": WEIGHTS[kind]["format"]},
            **{"quantization_status": "compressed", "ignore": ["lm_head"]},
            "config_groups": {"group_0": {"targets": ["Linear"], **group}},
        }
    return found


def write_tokenizer(folder: Path, words: int) -> None:
    """Write one whose tokens are numbered words, so that any tokens survive decoding."""
    vocabulary = {"<s>": 0, "</s>": 1, **{f"w{number}": number for number in range(2, words)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="</s>"
    ).save_pretrained(folder)


if __name__ == "__main__":
    kind, shape, folder = sys.argv[1:]
    main(kind, SHAPES[shape], Path(folder))
