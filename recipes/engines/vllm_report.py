"""What vLLM says of its KV cache, from its own objects: it runs inside vLLM's processes.

`Vllm.prepare_report` copies this file, as a plug-in, into the server's private folder. vLLM calls
`register` in each of its processes. A worker whose cache is allocated then writes
`report.PID.json`. It imports nothing of this project.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "PREPARE_ENGINE_REPORT"  # folder of the reports


def register() -> None:
    """Let each worker report once its KV cache is allocated."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    allocate = WorkerWrapperBase.initialize_from_config

    @functools.wraps(allocate)
    def allocate_and_report(self: Any, kv_cache_configs: Any, *rest: Any) -> Any:
        result = allocate(self, kv_cache_configs, *rest)
        try:
            told = describe(self.vllm_config, kv_cache_configs[self.global_rank])
        except Exception as error:  # another version: the server works without a report
            print(f"no report of the KV cache: {error!r}", flush=True)
        else:
            write(Path(os.environ[VARIABLE]), told)
        return result

    WorkerWrapperBase.initialize_from_config = allocate_and_report


def describe(config: Any, cache: Any) -> dict[str, Any]:
    """Return what one worker's layers use."""
    import vllm

    specs = {}
    for group in cache.kv_cache_groups:
        for name in group.layer_names:
            # A group of several kinds of layers has one specification for each.
            own = getattr(group.kv_cache_spec, "kv_cache_specs", {})
            specs[name] = own.get(name, group.kv_cache_spec)
    layers = {}
    for name, layer in config.compilation_config.static_forward_context.items():
        if hasattr(layer, "kv_cache_dtype") and (spec := specs.get(name)) is not None:
            layers[name] = {
                "asked": str(layer.kv_cache_dtype),
                "stored": str(spec.dtype).removeprefix("torch."),
                "bytes": spec.page_size_bytes / spec.block_size,
                "backend": layer.attn_backend.get_name(),
                "k_scale": scale_of(layer, "k"),
                "v_scale": scale_of(layer, "v"),
                "is_computed": bool(getattr(layer, "calculate_kv_scales", False)),
            }
    return {"version": vllm.__version__, "layers": layers}


def scale_of(layer: Any, which: str) -> list[float]:
    """Return the smallest and the largest scale of a layer: one for all heads, or one for each."""
    scale = getattr(layer, f"_{which}_scale").flatten().float()
    return [scale.min().item(), scale.max().item()]


def write(folder: Path, told: dict[str, Any]) -> None:
    """Write the report of this process; its final name appears last."""
    file = folder / f"report.{os.getpid()}.json"
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(told))
    partial.rename(file)
