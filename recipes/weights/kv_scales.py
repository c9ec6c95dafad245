"""A server's KV cache against its profile's format and its checkpoint's scales."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from prepare.errors import ServingError
from recipes.engines import Engine
from recipes.engines.engine import PLAIN
from recipes.engines.kv_report import UNSCALED, KvReport
from recipes.weights.accounting import StoredTensor, open_folder

# The sides that a stored scale belongs to, by the end of its name.
SCALES = {
    ".k_scale": ("keys",),
    ".v_scale": ("values",),
    ".kv_scale": ("keys", "values"),
    ".k_cache.scale": ("keys",),
    ".v_cache.scale": ("values",),
}
NUMBERS = {"F64": "<d", "F32": "<f", "F16": "<e"}
_LAYER = re.compile(r"\.(\d+)\.")
_HINT = (
    "a server that loses them answers as another model; take another version of the engine, a "
    "profile with a 16-bit KV cache (kv_cache_dtype: auto), or a variant without scales"
)


def check_cache(
    model: Path, report: KvReport | None, log: str, engine: Engine, kv_cache_dtype: str
) -> None:
    """Raise ServingError if the server's KV cache is not what profile and checkpoint say.

    `kv_cache_dtype` is the profile's. Without a report only the warnings in `log`, that of the
    server's start, can refuse it.
    """
    if report is None:
        _check_log(model, log, engine, kv_cache_dtype)
        return
    is_quantized = kv_cache_dtype != "auto" and kv_cache_dtype not in PLAIN
    if is_quantized and not report.has_format(kv_cache_dtype):
        raise ServingError(
            f"the profile asks for a KV cache of type {kv_cache_dtype}, and the engine stores "
            f"{report.form}",
            where="profile, key kv_cache_dtype",
            hint="take an engine that stores it, or write kv_cache_dtype: auto in a profile",
        )
    if lost := next(_lost_scales(model, report), None):
        name, side, layer = lost
        raise ServingError(
            f"the server replaced scales of the KV cache by 1.0: the checkpoint has '{name}', and "
            f"the engine uses 1.0 for the {side} of its layer '{layer}'",
            where=str(model),
            hint=_HINT,
        )


def _lost_scales(model: Path, report: KvReport) -> Iterator[tuple[str, str, str]]:
    """Yield stored scales that are not 1, with side and layer that uses 1.0 in their place."""
    scaled = {name: layer for name, layer in report.layers.items() if layer.has_scales}
    if not scaled or any(layer.is_computed for layer in scaled.values()):
        return
    for stored in _stored_scales(model):
        number = _layer_number(stored)
        of_layer = {name: layer for name, layer in scaled.items() if _layer_number(name) == number}
        served = scaled if number is None else of_layer
        for side in next(sides for end, sides in SCALES.items() if stored.endswith(end)):
            if served and all({*layer.scale(side)} == UNSCALED for layer in served.values()):
                yield stored, side, next(iter(served))


def _layer_number(name: str) -> str | None:
    number = _LAYER.search(name)
    return number[1] if number else None


def _check_log(model: Path, log: str, engine: Engine, kv_cache_dtype: str) -> None:
    warning = re.search(engine.lost_scales, log)
    if warning is None and kv_cache_dtype.startswith("fp8"):
        warning = re.search(engine.unread_scales, log)
    name = next(_stored_scales(model), "") if warning else ""
    if warning is None or not name:
        return
    raise ServingError(
        f"the server replaced the scales of the KV cache by 1.0: the checkpoint has "
        f"'{name}', and the log reads '{warning[0]}'",
        where=str(model),
        hint=_HINT,
    )


def _stored_scales(model: Path) -> Iterator[str]:
    """Yield the names of stored scales that are not 1."""
    for name, tensor in open_folder(model).tensors.items():
        if name.endswith(tuple(SCALES)) and _value(tensor) != 1.0:
            yield name


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
