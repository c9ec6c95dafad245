"""In the quantizing environment: clipped shares, as the worker measures them and by the cache."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from compressed_tensors.modeling import initialize_hooked_kv_cache
from transformers import AutoModelForCausalLM

from recipes.quantizers.kv_clipping import FP8_MAX, measure_clipping

BLOCKS = [list(range(1, 33)), list(range(33, 65))]
HEADS = {"k_scale": 0.8, "v_scale": 0.99}  # the quantile of each head that is the largest number


def largest(model: Any, layer: int, side: str) -> torch.Tensor:
    """Return a limit for each head, of shape (heads, 1, 1), from the cache of transformers."""
    sizes = torch.cat([stored(model, block, layer, side) for block in BLOCKS], dim=1)
    return sizes.flatten(1).quantile(HEADS[side], dim=1).reshape(-1, 1, 1)


def stored(model: Any, block: list[int], layer: int, side: str) -> torch.Tensor:
    with torch.no_grad():
        cache = model(input_ids=torch.tensor([block]), use_cache=True).past_key_values
    states = cache.layers[layer].keys if side == "k_scale" else cache.layers[layer].values
    return states[0].float().abs()


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    names = [name for name, _ in model.named_modules() if name.endswith(".self_attn")]
    limits = {
        (name, side): largest(model, number, side)
        for number, name in enumerate(names)
        for side in HEADS
    }
    for name in names:
        attention = model.get_submodule(name)
        initialize_hooked_kv_cache(model, attention)
        for side in HEADS:
            scale = torch.nn.Parameter(limits[name, side] / FP8_MAX, requires_grad=False)
            attention.register_parameter(side, scale)
    print(json.dumps(measure_clipping(model, BLOCKS)))


if __name__ == "__main__":
    main()
