"""What a started engine says of its KV cache: format, scales and attention of each layer.

It comes from the engine's own objects, through files in the server's private folder. Nothing that a
model or a checkpoint writes into the log counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from prepare.errors import ServingError
from prepare.record import Record
from prepare.untrusted import read_record
from recipes.engines.engine import PLAIN

NOT_TOLD = "not told by the engine"
DYNAMIC = "per_token_head"  # formats whose scales belong to each token
SAME = ("fp8", "fp8_e4m3", "fp8_ds_mla", "fp8_inc")  # one format, by its names

UNSCALED = {1.0}

Range = Annotated[list[float], Field(min_length=2, max_length=2)]


class LayerCache(Record):
    """The cache of one layer."""

    asked: str = Field(max_length=64, description="the engine's name of the format, or auto")
    stored: str = Field(max_length=64, description="type of the stored elements")
    bytes: float = Field(gt=0, description="of a token")
    backend: str = Field(max_length=64, description="of attention")
    k_scale: Range = Field(description="the smallest and the largest of the layer's heads")
    v_scale: Range
    is_computed: bool = Field(False, description="scales are computed from the first tokens")

    @property
    def form(self) -> str:
        return self.stored if self.stored in PLAIN else self.asked

    @property
    def has_scales(self) -> bool:
        """Whether the layer's stored values depend on fixed scales."""
        return self.form.startswith("fp8") and not self.form.endswith(DYNAMIC)

    def scale(self, side: str) -> list[float]:
        """Return the scales of keys or of values."""
        return self.k_scale if side == "keys" else self.v_scale

    def joined(self, other: LayerCache) -> LayerCache:
        """Return the layer of two processes that share its heads.

        Scales of one of them that are 1.0 were lost, so they count. ValueError: other formats.
        """
        if (self.asked, self.stored, self.backend) != (other.asked, other.stored, other.backend):
            raise ValueError("two processes store a layer in different ways")
        scales = {}
        for side in ("k_scale", "v_scale"):
            ranges = [getattr(self, side), getattr(other, side)]
            lost = [scale for scale in ranges if {*scale} == UNSCALED]
            whole = [min(low for low, _ in ranges), max(high for _, high in ranges)]
            scales[side] = lost[0] if lost else whole
        return self.model_copy(update=scales)

    @property
    def is_unscaled(self) -> bool:
        return {*self.k_scale, *self.v_scale} == UNSCALED


class KvReport(Record):
    """The caches of all layers that one server's processes reported."""

    version: str = Field(max_length=64, description="of the engine, as it reports it")
    layers: dict[str, LayerCache] = Field(min_length=1, max_length=10_000)

    def facts(self) -> dict[str, str]:
        """Return the facts of the server; a tuple records all but the bytes."""
        layers = self.layers.values()
        return {
            "kv_bytes_a_token": f"{sum(layer.bytes for layer in layers):g}",
            "kv_cache": self.form,
            "kv_scales": self._scales(),
            "attention": ", ".join(dict.fromkeys(layer.backend for layer in layers)),
        }

    @property
    def form(self) -> str:
        """The format, or each with its number of layers."""
        counts = Counter(layer.form for layer in self.layers.values())
        if len(counts) == 1:
            return next(iter(counts))
        return " and ".join(f"{form} in {count} layers" for form, count in sorted(counts.items()))

    def has_format(self, asked: str) -> bool:
        """Return whether a layer stores the format that a profile asks for."""
        names = SAME if asked in SAME else (asked,)
        return any(layer.form in names for layer in self.layers.values())

    def _scales(self) -> str:
        scaled = [layer for layer in self.layers.values() if layer.has_scales]
        if not scaled:
            dynamic = any(layer.form.endswith(DYNAMIC) for layer in self.layers.values())
            return "of each token and head" if dynamic else "none"
        if any(layer.is_computed for layer in scaled):
            return "computed by the engine from its first tokens"
        if all(layer.is_unscaled for layer in scaled):
            return "1.0"
        keys = [scale for layer in scaled for scale in layer.k_scale]
        values = [scale for layer in scaled for scale in layer.v_scale]
        return (
            f"keys {min(keys):.4g} to {max(keys):.4g} and "
            f"values {min(values):.4g} to {max(values):.4g}"
        )


def read_report(folder: Path) -> KvReport | None:
    """Return what a server's processes reported; None if they told nothing.

    ServingError: a report is damaged.
    """
    try:
        told = [read_record(file, KvReport) for file in sorted(folder.glob("report.*.json"))]
        layers = _joined_layers(told)
    except (OSError, ValueError) as error:
        raise ServingError(
            f"the server's report of its KV cache cannot be read: {error}",
            where=str(folder),
            hint="a plug-in of the engine may have changed it; start the server again",
        ) from error
    if not told:
        return None
    return KvReport(version=told[0].version, layers=layers)


def _joined_layers(reports: Sequence[KvReport]) -> dict[str, LayerCache]:
    """Return the layers of all processes; ValueError if two differ on one."""
    layers: dict[str, LayerCache] = {}
    for report in reports:
        for name, layer in report.layers.items():
            known = layers.get(name)
            layers[name] = layer if known is None else known.joined(layer)
    return layers
