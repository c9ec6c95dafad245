"""Composition of a checkpoint: parameters by kind of module, bytes, KV cache."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.checkpoint.safetensors_header import TensorEntry
from pipeline.core.errors import CheckpointError
from pipeline.inspection.dequantized_source import dequantized, planned_weights
from pipeline.inspection.header_source import HeaderSource
from pipeline.inspection.kv_cache import KvCacheSpec, kv_cache
from pipeline.inspection.model_shape import ModelShape, model_shape
from pipeline.inspection.module_kind import MODULE_KINDS, ModuleKind, module_kind
from pipeline.inspection.variant_size import VariantWeights
from recipes.quantization import Quantization
from recipes.weight_format import WeightFormat

# The decoder's matrices; embeddings, routers and vision towers usually keep 16 bits.
MATRICES: tuple[ModuleKind, ...] = ("attention", "mlp", "experts")
# Ends of names of scales, zero points and stored shapes, and of matrices of packed 4-bit numbers.
SCALES = ("_scale", "_scales", "_scale_inv", "scales", "qzeros", "_zero_point", "weight_shape")
PACKED = ("_blocks", "weight_packed", "qweight")
PACKED_BY_DTYPE = {"U8": 2, "I32": 8}
# Formats that inspection shows for every checkpoint.
SHOWN_FORMATS = (
    WeightFormat("dense", 16, "float", "none"),
    WeightFormat("float-quantized", 8, "float", "channel"),
    WeightFormat("int-quantized", 8, "int", "channel"),
    WeightFormat("pack-quantized", 4, "int", "group", group=128, symmetric=False),
    WeightFormat("pack-quantized", 4, "int", "group", group=128),
)


@dataclass(frozen=True)
class CheckpointInspection:
    """Facts from a checkpoint's config and headers."""

    source: HeaderSource
    shape: ModelShape
    cache: KvCacheSpec

    @cached_property
    def kinds(self) -> dict[str, ModuleKind]:
        layers = self.shape.layers
        tensors = {**self.source.tensors, **self.recipe_source.tensors}
        return {
            name: module_kind(name, len(tensor.shape), layers) for name, tensor in tensors.items()
        }

    @cached_property
    def recipe_source(self) -> HeaderSource:
        """What recipes start from: the checkpoint in 16 bits."""
        return dequantized(self.source)

    @cached_property
    def parameters(self) -> dict[ModuleKind, int]:
        return self._count(self.source.tensors.items())

    @property
    def parameters_total(self) -> int:
        return sum(self.parameters.values())

    def bytes_at(self, form: WeightFormat) -> int:
        """Return the size with attention, MLP and expert matrices in this format.

        All other tensors have 16 bits. Fused experts count as one matrix with the rows of all.
        """
        return sum(
            form.matrix_bytes(math.prod(tensor.shape[:-1]), tensor.shape[-1])
            if self._is_matrix(name, tensor)
            else 2 * tensor.elements
            for name, tensor in self.source.tensors.items()
        )

    def variant(self, quantization: Quantization) -> VariantWeights:
        return planned_weights(self.source, quantization)

    def count_unquantized(self, weights: VariantWeights) -> dict[ModuleKind, int]:
        unquantized = (tensor for tensor in weights.tensors if not tensor.quantized)
        return self._count((tensor.name, tensor.tensor) for tensor in unquantized)

    def count_quantized(self, weights: VariantWeights) -> dict[ModuleKind, int]:
        quantized = (tensor for tensor in weights.tensors if tensor.quantized)
        return self._count((tensor.name, tensor.tensor) for tensor in quantized)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        shape, cache = self.shape, self.cache
        return {
            "name": self.source.name,
            "architecture": shape.architecture,
            "model_type": shape.model_type,
            "layers": shape.layers,
            "context": shape.context,
            "quantized": self.source.format.label if self.source.format else None,
            "parameters": self.parameters_total,
            "parameters_by_kind": self.parameters,
            "weights_bytes": self.source.weights_bytes,
            "bytes_at": {form.label: self.bytes_at(form) for form in SHOWN_FORMATS},
            "kv_cache": {
                "attention": cache.attention,
                "heads": max((each.heads for each in cache.layers), default=None),
                "layers": len(cache.layers),
                "state_layers": cache.states,
                "sliding_layers": sum(window is not None for window in cache.windows),
                "windows": sorted({window for window in cache.windows if window is not None}),
                "bytes_per_token_16_bit": None if cache.unknown else cache.token_bytes(2),
                "bytes_per_token_fp8": None if cache.unknown else cache.token_bytes(1),
                "state_bytes_per_sequence": None if cache.unknown else cache.state_bytes(),
                "unknown": cache.unknown or None,
            },
        }

    def _is_matrix(self, name: str, tensor: TensorEntry) -> bool:
        return self.kinds[name] in MATRICES and len(tensor.shape) >= 2

    def _count(self, tensors: Iterable[tuple[str, TensorEntry]]) -> dict[ModuleKind, int]:
        counts: Counter[ModuleKind] = Counter()
        for name, tensor in tensors:
            counts[self.kinds[name]] += _parameters(name, tensor)
        return {kind: counts[kind] for kind in MODULE_KINDS if counts[kind]}


def _parameters(name: str, tensor: TensorEntry) -> int:
    """Return the parameters in a tensor: none in scales, several in a packed element."""
    leaf = name.rpartition(".")[2]
    if leaf.endswith(SCALES):
        return 0
    if leaf.endswith(PACKED):
        return tensor.elements * PACKED_BY_DTYPE.get(tensor.dtype, 1)
    return tensor.elements


def inspect(source: HeaderSource) -> CheckpointInspection:
    """Inspect a checkpoint; raise CheckpointError if its weights are empty."""
    if not any(tensor.elements for tensor in source.tensors.values()):
        raise CheckpointError("the weights are empty", where=source.where)
    shape = model_shape(source.config, source.where)
    return CheckpointInspection(source, shape, kv_cache(source.config, shape, source.where))
