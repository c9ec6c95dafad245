"""checkpoint.py 8b|tiny FOLDER: a BF16 checkpoint of random weights in FOLDER/bf16, a file a layer, with a tokenizer of its words."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from shapes import SHAPES, configuration, layer_sizes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# A longer context would take more KV cache than fits with 16 GB of weights into less than half of the memory.
CONTEXT = {"8b": 16384}


def drawn(*size):
    return torch.randn(*size, dtype=torch.bfloat16, device=DEVICE) * 0.02


def ones(size):
    return torch.ones(size, dtype=torch.bfloat16)


def layer_tensors(shape, layer):
    prefix = f"model.layers.{layer}."
    tensors = {f"{prefix}{name}.weight": drawn(*size) for name, size in layer_sizes(shape).items()}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{prefix}{norm}.weight"] = ones(shape["hidden_size"])
    return tensors


def outer_tensors(shape):
    hidden = shape["hidden_size"]
    words = shape["vocab_size"]
    return {
        "model.embed_tokens.weight": drawn(words, hidden),
        "lm_head.weight": drawn(words, hidden),
        "model.norm.weight": ones(hidden),
    }


def write(tensors, path):
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path)


def word_tokenizer(words):
    vocabulary = {"<s>": 0, "</s>": 1, **{f"w{number}": number for number in range(2, words)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="</s>")


def make(shape, folder):
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    word_tokenizer(shape["vocab_size"]).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(configuration(shape)))
    files = {}
    with ThreadPoolExecutor(8) as pool:
        jobs = []
        for layer in range(shape["num_hidden_layers"] + 1):
            is_outer = layer == shape["num_hidden_layers"]
            tensors = outer_tensors(shape) if is_outer else layer_tensors(shape, layer)
            file = f"model-{'outer' if is_outer else f'{layer:02}'}.safetensors"
            files |= dict.fromkeys(tensors, file)
            jobs.append(pool.submit(write, tensors, folder / file))
        for job in jobs:
            job.result()
    # transformers reads no index without metadata
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


if __name__ == "__main__":
    began = time.time()
    name = sys.argv[1]
    shape = SHAPES[name]
    context = min(shape["max_position_embeddings"], CONTEXT.get(name, shape["max_position_embeddings"]))
    make({**shape, "max_position_embeddings": context}, Path(sys.argv[2]) / "bf16")
    print(json.dumps({"checkpoint_seconds": round(time.time() - began, 1), "device": DEVICE}))
