"""Distribution of a variant's weights over GPUs by tensor parallelism, and its obstacles.

The rules are vLLM's. Attention, MLP, expert and state-space matrices, embeddings and the output
head are split. Norms, routers and the narrow side of latent attention are on every GPU; a key-value
head is never split. Vision towers, which vLLM treats differently by model, count fully on every
GPU, which is an upper estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.inspection.inspection import MATRICES, CheckpointInspection
from pipeline.inspection.linear_layers import is_linear_weight
from pipeline.inspection.model_shape import text_level
from pipeline.inspection.module_kind import ModuleKind
from pipeline.inspection.variant_size import VariantTensor, VariantWeights

ON_EVERY_GPU: tuple[ModuleKind, ...] = ("norms", "routers", "vision", "other")
NOT_LOADED: tuple[ModuleKind, ...] = ("mtp",)  # unless speculative decoding uses it
LATENT = ("q_a_proj", "kv_a_proj_with_mqa", "kv_a_proj", "q_down_proj", "kv_down_proj")
INDEXERS = ("indexer",)
KEY_VALUE = ("k_proj", "v_proj", "key", "value")
# These read split activations, so their columns are split; the others' rows are.
SPLIT_BY_COLUMNS = ("o_proj", "down_proj", "w2", "out_proj", "c_proj", "dense_4h_to_h", "fc2", "wo")
WIDE_TYPES = ("F32", "F64")  # the engine runs them in 16 bits
# Tiles that MXFP4 experts are padded to: Marlin's, the largest of vLLM's kernels.
MXFP4_HIDDEN, MXFP4_INNER = 256, 128


@dataclass(frozen=True)
class ShardedWeights:
    """A variant's weights by their distribution over GPUs."""

    everywhere: int  # bytes that every GPU keeps
    split: int  # bytes that are divided by the number of GPUs
    key_value: int  # bytes of key and value projections, divided by at most the key-value heads
    key_value_heads: int  # how many of those
    heads: int  # attention heads, which are not split either
    columns: frozenset[int]  # of the matrices whose columns are split
    grouped_columns: frozenset[int]  # of those among them that are quantized in groups
    rows: frozenset[int]  # of the other matrices that are split
    group: int | None  # columns that share a scale; None without groups
    latent: bool  # latent attention, whose one head is on every GPU
    read_per_token: int  # bytes that a decoding step reads for one sequence
    mxfp4: int = 0  # bytes of MXFP4 experts, which are in `split` as well
    hidden: int = 0  # width of these experts' input and output
    expert_inner: int = 0  # of one such expert

    def bytes_on_gpu(self, gpus: int) -> int:
        shared = self.key_value // min(gpus, self.key_value_heads)
        return self.everywhere + -(-self.split // gpus) + shared

    def filling_bytes(self, gpus: int) -> int:
        """Return the maximum padding of MXFP4 experts to full tiles, in bytes a GPU."""
        if not self.mxfp4:
            return 0
        inner = -(-self.expert_inner // gpus)
        filled = _round_up(self.hidden, MXFP4_HIDDEN) * _round_up(inner, MXFP4_INNER)
        return self.mxfp4 * filled // (self.hidden * inner * gpus) - self.mxfp4 // gpus

    def obstacle(self, gpus: int) -> str:
        """Return why the model cannot be split over `gpus` GPUs; empty if it can."""
        if self.heads % gpus:
            return f"{self.heads} attention heads cannot be split over {gpus} GPUs"
        kv = self.key_value_heads
        if not self.latent and kv % gpus and gpus % kv:
            return f"{kv} key-value heads cannot be split over {gpus} GPUs"
        for size in sorted(self.columns | self.rows):
            if size % gpus:
                return f"a layer of {size} rows or columns cannot be split over {gpus} GPUs"
        for size in sorted(self.grouped_columns):
            if self.group and (size // gpus) % self.group:
                return (
                    f"groups of {self.group} do not divide the {size // gpus} columns "
                    f"that each of {gpus} GPUs gets of {size}"
                )
        return ""


def shards(inspection: CheckpointInspection, weights: VariantWeights) -> ShardedWeights:
    """Classify the variant's tensors by their distribution over GPUs."""
    everywhere = split = key_value = read = mxfp4 = 0
    columns: set[int] = set()
    grouped: set[int] = set()
    rows: set[int] = set()
    shape = inspection.shape
    is_mxfp4 = shape.experts > 0 and _says_mxfp4(inspection.source.config)
    for each in weights.tensors:
        kind = inspection.kinds[each.name]
        if kind in NOT_LOADED:
            continue
        size = served_bytes(each)
        read += _read_per_token(kind, size, inspection)
        leaf = _leaf(each.name)
        if kind in ON_EVERY_GPU or leaf in LATENT or _is_indexer(each.name):
            everywhere += size
        elif kind == "attention" and leaf in KEY_VALUE:
            key_value += size
        else:
            split += size
            mxfp4 += size if is_mxfp4 and kind == "experts" and each.tensor.dtype == "U8" else 0
            if is_linear_weight(each.name, each.tensor) and kind in MATRICES:
                height, width = each.tensor.shape
                if leaf in SPLIT_BY_COLUMNS:
                    columns.add(width)
                    grouped |= {width} if each.quantized else set()
                else:
                    rows.add(height)
    return ShardedWeights(
        everywhere=everywhere,
        split=split,
        key_value=key_value,
        key_value_heads=shape.key_value_heads,
        heads=shape.heads,
        columns=frozenset(columns),
        grouped_columns=frozenset(grouped),
        rows=frozenset(rows),
        group=weights.form.shared_columns if weights.form else None,
        latent=inspection.cache.attention == "mla",
        read_per_token=read,
        mxfp4=mxfp4,
        hidden=shape.hidden,
        expert_inner=shape.expert_inner,
    )


def served_bytes(each: VariantTensor) -> int:
    """Return the bytes in GPU memory: unquantized tensors run in 16 bits."""
    if not each.quantized and each.tensor.dtype in WIDE_TYPES:
        return 2 * each.tensor.elements
    return each.bytes


def _read_per_token(kind: ModuleKind, size: int, inspection: CheckpointInspection) -> int:
    """Count one embedding row as nothing, and only the experts that a token uses."""
    shape = inspection.shape
    if kind == "experts" and shape.experts:
        return size * shape.experts_per_token // shape.experts
    if kind == "embeddings" and not shape.tied:
        return 0
    return 0 if kind == "vision" else size


def _says_mxfp4(config: dict[str, Any]) -> bool:
    said = text_level(config).get("quantization_config")
    return isinstance(said, dict) and said.get("quant_method") == "mxfp4"


def _round_up(size: int, tile: int) -> int:
    return -(-size // tile) * tile


def _leaf(name: str) -> str:
    parts = name.split(".")
    return parts[-2] if len(parts) > 1 else parts[0]


def _is_indexer(name: str) -> bool:
    return any(part in INDEXERS for part in name.split("."))
