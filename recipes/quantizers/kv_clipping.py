"""How much an FP8 KV cache with calibrated scales clips of texts that were not calibrated on."""

from __future__ import annotations

from typing import Any

FP8_MAX = 448.0
"""The largest number of FP8 E4M3."""
SEEN_PER_UNSEEN = 8
"""Blocks of calibration for each block that clipping is measured on."""


class _Count:
    """Elements of keys, or of values, of one layer."""

    def __init__(self) -> None:
        self.clipped = 0
        self.all = 0

    @property
    def share(self) -> float:
        return self.clipped / self.all if self.all else 0.0


def blocks_to_measure(blocks: int) -> int:
    """Return how many further blocks of text clipping is measured on."""
    return max(1, blocks // SEEN_PER_UNSEEN)


def measure_clipping(model: Any, blocks: list[list[int]]) -> dict[str, Any] | None:
    """Run the blocks through the calibrated model; return `KvClipping`, or None without scales.

    Keys are those after their rotation, as the cache stores them.
    """
    import torch
    from compressed_tensors.modeling import register_key_hook, register_value_hook
    from compressed_tensors.offload import dispatch_model

    layers = {name: module for name, module in model.named_modules() if hasattr(module, "k_scale")}
    if not layers:
        return None
    if torch.accelerator.is_available():
        dispatch_model(model)
    keys = {name: _Count() for name in layers}
    values = {name: _Count() for name in layers}
    hooks = []
    for name, module in layers.items():
        hooks.append(register_key_hook(module, _counter(keys[name], "k_scale")))
        hooks.append(register_value_hook(module, _counter(values[name], "v_scale")))
    try:
        with torch.no_grad():
            for block in blocks:
                model(input_ids=torch.tensor([block], device=model.device))
    finally:
        for hook in hooks:
            hook.remove()
    shares = {name: max(keys[name].share, values[name].share) for name in layers}
    worst = max(shares, key=lambda name: shares[name])
    return {
        "tokens": sum(map(len, blocks)),
        "keys": _share(keys),
        "values": _share(values),
        "worst_layer": worst,
        "worst_share": shares[worst],
    }


def _counter(count: _Count, scale: str) -> Any:
    def add(module: Any, states: Any) -> None:
        largest = FP8_MAX * getattr(module, scale).to(states.device).float()
        count.clipped += int((states.float().abs() > largest).sum())
        count.all += states.numel()

    return add


def _share(counts: dict[str, _Count]) -> float:
    return sum(count.clipped for count in counts.values()) / sum(
        count.all for count in counts.values()
    )
