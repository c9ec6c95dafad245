"""Run by a vLLM environment's Python: what the reader of KV facts tells of vLLM's own objects.

    kv_objects.py REPORTS.json [WHEEL]

WHEEL is a folder with the sources of another version, whose objects are then made. They need no
compiled code: two attention layers, their specification, and a cache of one group each, or of one
group for both. The reports are by format of the cache.
"""

import json
import sys
from pathlib import Path

if len(sys.argv) > 2:
    sys.path.insert(0, sys.argv[2])

import torch

from recipes.engines.vllm_report import describe

FORMATS = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_per_token_head", "int8_per_token_head")
SCALES = {"fp8": (0.5, 0.25)}


class Model:
    """The part of a model's configuration that a layer reads."""

    dtype = torch.bfloat16

    def __getattr__(self, name):
        return False


def reports_of(kv_format):
    """Return the reports of both forms of a cache; they should be equal."""
    from vllm.config import CacheConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    from vllm.v1.kv_cache_interface import (
        KVCacheConfig,
        KVCacheGroupSpec,
        UniformTypeKVCacheSpecs,
    )

    cache = CacheConfig(cache_dtype=kv_format, block_size=32)
    config = VllmConfig(cache_config=cache)
    config.model_config = Model()
    specs = {}
    with set_current_vllm_config(config):
        for number in range(2):
            name = f"model.layers.{number}.self_attn.attn"
            layer = Attention(
                num_heads=4,
                head_size=64,
                scale=0.125,
                num_kv_heads=2,
                cache_config=cache,
                prefix=name,
                attn_backend=CPUAttentionBackend,
            )
            for side, scale in zip("kv", SCALES.get(kv_format, ()), strict=False):
                getattr(layer, f"_{side}_scale").fill_(scale)
            specs[name] = layer.get_kv_cache_spec(config)
        apart = [KVCacheGroupSpec([name], spec) for name, spec in specs.items()]
        together = [KVCacheGroupSpec(list(specs), UniformTypeKVCacheSpecs.from_specs(specs))]
        return [
            describe(
                config, KVCacheConfig(num_blocks=4, kv_cache_tensors=[], kv_cache_groups=groups)
            )
            for groups in (apart, together)
        ]


def main(reports):
    """Write the reports by format."""
    from vllm import platforms
    from vllm.platforms.cpu import CpuPlatform

    platforms._current_platform = CpuPlatform()
    told = {kv_format: reports_of(kv_format) for kv_format in FORMATS}
    Path(reports).write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
