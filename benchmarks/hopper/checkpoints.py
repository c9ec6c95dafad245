"""Checkpoints in the formats that the project's recipes write, from random weights or from a BF16 checkpoint.

python3 checkpoints.py random 8b|tiny FOLDER   BF16, FP8 and 4 bits of the same random weights: FOLDER/{bf16,fp8,w4a16}
python3 checkpoints.py gguf FILE.gguf FOLDER   the demo model: FOLDER/{smol-bf16,smol-fp8}

FP8: per channel, activations per token (recipe fp8-dynamic). 4 bits: asymmetric, groups of 128 (awq-w4a16), rounded to
nearest: AWQ's search changes values, not shapes or speed.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__":  # planned.py needs the shapes alone, where there may be no torch
    import torch
    from safetensors.torch import load_file, save_file

    DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    FP8 = torch.float8_e4m3fn

SHAPES = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "vocab_size": 4096,
    },
}
GROUP = 128


def configuration(shape):
    """config.json of the BF16 checkpoint."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **shape,
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "attention_bias": False,
        "mlp_bias": False,
    }


def layer_sizes(shape):
    """Rows and columns of a layer's matrices."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    heads, kv = (shape[key] * shape["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    return {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def sizes_of(shape):
    """Every tensor's size in the BF16 checkpoint."""
    hidden, words = shape["hidden_size"], shape["vocab_size"]
    sizes = {"model.embed_tokens.weight": (words, hidden), "lm_head.weight": (words, hidden), "model.norm.weight": (hidden,)}
    for layer in range(shape["num_hidden_layers"]):
        of = f"model.layers.{layer}."
        sizes |= {of + "input_layernorm.weight": (hidden,), of + "post_attention_layernorm.weight": (hidden,)}
        sizes |= {f"{of}{name}.weight": size for name, size in layer_sizes(shape).items()}
    return sizes


def fp8(weight):
    scale = weight.abs().amax(1, keepdim=True) / torch.finfo(FP8).max
    scale = torch.where(scale == 0, torch.finfo(FP8).eps, scale)
    return {"weight": (weight / scale).clamp(-448, 448).to(FP8), "weight_scale": scale.bfloat16()}


def pack(values, dim):
    """Eight 4-bit numbers to a word along a dimension, the first lowest."""
    values = values.to(torch.int32).unflatten(dim, (-1, 8))
    word = torch.zeros_like(values.select(dim + 1, 0))
    for at in range(8):
        word |= values.select(dim + 1, at) << (4 * at)
    return word


def w4a16(weight):
    rows, columns = weight.shape
    groups = weight.float().view(rows, -1, GROUP)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scale = ((high - low) / 15).bfloat16()
    zero = (-low / scale.float()).round().clamp(0, 15)
    number = (groups / scale.float()[..., None] + zero[..., None]).round().clamp(0, 15)
    return {
        "weight_packed": pack(number.view(rows, columns), 1),
        "weight_scale": scale,
        "weight_zero_point": pack(zero, 0),
        "weight_shape": torch.tensor([rows, columns]),
    }


WEIGHTS = {
    "fp8": (
        "float-quantized",
        fp8,
        {
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True},
        },
    ),
    "w4a16": (
        "pack-quantized",
        w4a16,
        {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": False, "dynamic": False}},
    ),
}


def quantization_config(kind):
    form, _, group = WEIGHTS[kind]
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], **group}},
    }


class Writer:
    """Writes files of several checkpoints while others are computed."""

    def __init__(self, folders):
        self.folders, self.places, self.pool, self.jobs = (folders, {k: {} for k in folders}, ThreadPoolExecutor(8), [])
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)

    def save(self, kind, name, tensors):
        file = f"model-{name}.safetensors"
        self.places[kind].update(dict.fromkeys(tensors, file))
        self.jobs.append(self.pool.submit(self.write, self.folders[kind] / file, tensors))

    @staticmethod
    def write(path, tensors):
        save_file({key: value.cpu().contiguous() for key, value in tensors.items()}, path)

    def configure(self, kind, config):
        (self.folders[kind] / "config.json").write_text(json.dumps(config))

    def finish(self, kind):
        (self.folders[kind] / "model.safetensors.index.json").write_text(json.dumps({"weight_map": self.places[kind]}))

    def wait(self):
        for job in self.jobs:
            job.result()


def random_checkpoints(shape, folder):
    torch.manual_seed(0)
    kinds = ("bf16", *WEIGHTS)
    writer = Writer({kind: folder / kind for kind in kinds})
    hidden, words = shape["hidden_size"], shape["vocab_size"]
    sizes = layer_sizes(shape)

    def drawn(*size):
        return torch.randn(*size, dtype=torch.bfloat16, device=DEVICE) * 0.02

    base = configuration(shape)
    tokenizer = word_tokenizer(words)
    tokenizer.save_pretrained(folder / kinds[0])
    made = [file for file in (folder / kinds[0]).iterdir() if file.is_file()]
    for kind in kinds:  # first: with these alone a server can still draw its weights
        for file in made:
            if kind != kinds[0]:
                (folder / kind / file.name).write_bytes(file.read_bytes())
        writer.configure(kind, base | ({"quantization_config": quantization_config(kind)} if kind in WEIGHTS else {}))
    ones = torch.ones(hidden, dtype=torch.bfloat16, device=DEVICE)
    for layer in range(shape["num_hidden_layers"]):
        of = f"model.layers.{layer}."
        files = {
            kind: {of + norm: ones.clone() for norm in ("input_layernorm.weight", "post_attention_layernorm.weight")} for kind in kinds
        }
        for name, size in sizes.items():
            weight = drawn(*size)
            files["bf16"][f"{of}{name}.weight"] = weight
            for kind, (_, quantize, _) in WEIGHTS.items():
                files[kind].update({f"{of}{name}.{key}": value for key, value in quantize(weight).items()})
        for kind in kinds:
            writer.save(kind, f"{layer:02}", files[kind])
    outer = {"model.embed_tokens.weight": drawn(words, hidden), "lm_head.weight": drawn(words, hidden), "model.norm.weight": ones}
    for kind in kinds:
        writer.save(kind, "outer", outer)
        writer.finish(kind)
    writer.wait()


def word_tokenizer(words):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<s>": 0, "</s>": 1, **{f"w{number}": number for number in range(2, words)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="</s>")


def from_gguf(file, folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = folder / "smol-bf16"
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.bfloat16)
    for holder in (model, model.config):
        for name in ("hf_quantizer", "quantization_config"):
            if hasattr(holder, name):
                delattr(holder, name)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(target)
    quantized = folder / "smol-fp8"
    quantized.mkdir(exist_ok=True)
    tensors, differ = {}, 0
    for name, value in load_file(target / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            cast, here = fp8(value.to(DEVICE)), fp8(value)
            differ += int((cast["weight"].cpu().view(torch.uint8) != here["weight"].view(torch.uint8)).sum())
            tensors.update({name.removesuffix("weight") + key: part.cpu().contiguous() for key, part in cast.items()})
        else:
            tensors[name] = value
    save_file(tensors, quantized / "model.safetensors")
    for other in target.iterdir():
        if other.suffix != ".safetensors":
            (quantized / other.name).write_bytes(other.read_bytes())
    config = json.loads((target / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps(config | {"quantization_config": quantization_config("fp8")}))
    print(json.dumps({"fp8_bytes_differing_between_gpu_and_cpu": differ}))


if __name__ == "__main__":
    began = time.time()
    if sys.argv[1] == "random":
        random_checkpoints(SHAPES[sys.argv[2]], Path(sys.argv[3]))
    else:
        from_gguf(Path(sys.argv[2]), Path(sys.argv[3]))
    print(json.dumps({"checkpoint_seconds": round(time.time() - began, 1), "device": DEVICE}))
