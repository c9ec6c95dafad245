"""Scales of a checkpoint's KV cache, and whether the engine took them."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from prepare.errors import ServingError
from recipes.engines import Engine
from recipes.weights.accounting import StoredTensor, open_folder

SCALES = (".k_scale", ".v_scale", ".kv_scale", ".k_cache.scale", ".v_cache.scale")
NUMBERS = {"F64": "<d", "F32": "<f", "F16": "<e"}


def check_scales_taken(model: Path, log: str, engine: Engine, kv_cache_dtype: str) -> None:
    """Raise ServingError if the engine replaced the checkpoint's scales of the KV cache by 1.

    `log` is that of the server's start.
    """
    warning = re.search(engine.lost_scales, log)
    if warning is None and kv_cache_dtype.startswith("fp8"):
        warning = re.search(engine.unread_scales, log)
    if warning is None:
        return
    name = find_scale(model)
    if not name:
        return
    raise ServingError(
        f"the server replaced the scales of the KV cache by 1.0: the checkpoint has "
        f"'{name}', and the log reads '{warning[0]}'",
        where=str(model),
        hint="a server that loses them answers as another model; take another version of the "
        "engine, a profile with a 16-bit KV cache (kv_cache_dtype: auto), or a variant without "
        "scales",
    )


def find_scale(model: Path) -> str:
    """Return the name of a stored scale that is not 1, or ''."""
    for name, tensor in open_folder(model).tensors.items():
        if name.endswith(SCALES) and _value(tensor) != 1.0:
            return name
    return ""


def _value(tensor: StoredTensor) -> float | None:
    """Return a stored scalar; None for another shape or type."""
    if tensor.elements != 1:
        return None
    with tensor.path.open("rb") as file:
        file.seek(tensor.begin)
        content = file.read(tensor.size)
    if tensor.dtype == "BF16":
        return float(struct.unpack("<f", b"\0\0" + content)[0])
    form = NUMBERS.get(tensor.dtype)
    return float(struct.unpack(form, content)[0]) if form else None
