"""A vLLM plugin for tests: keys and values are rounded to few bits before the CPU cache takes them.

Each token's head has one symmetric scale. The number of bits is FEW_KV_BITS of the environment.
"""

import os

import torch


def rounded(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the nearest of 2^bits - 1 levels; the last dimension shares a scale."""
    levels = 2 ** (bits - 1) - 1
    exact = values.float()
    scale = (exact.abs().amax(dim=-1, keepdim=True) / levels).clamp(min=1e-12)
    return (torch.round(exact / scale) * scale).to(values.dtype)


def register() -> None:
    """Round in the one method that writes to the cache; attention reads from there alone."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    bits = int(os.environ["FEW_KV_BITS"])
    stock = CPUAttentionBackendImpl.do_kv_cache_update

    def update(self, layer, key, value, *rest):  # type: ignore[no-untyped-def]
        return stock(self, layer, rounded(key, bits), rounded(value, bits), *rest)

    CPUAttentionBackendImpl.do_kv_cache_update = update
