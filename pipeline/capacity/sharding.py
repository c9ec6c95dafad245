"""How tensor parallelism spreads a variant's weights over GPUs, and when it cannot.

As vLLM does it: attention, MLP and expert matrices, embeddings and the output head are split;
norms, routers and the narrow side of latent attention are on every GPU; a key-value head is
never split. Where the engine's way differs by model (vision towers, state-space layers), this
counts a copy on every GPU: more than is used, rather than less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.inspection.inspection import CheckpointInspection
from pipeline.inspection.model_shape import text_level
from pipeline.inspection.module_kind import ModuleKind
from pipeline.inspection.variant_size import VariantTensor, VariantWeights

ON_EVERY_GPU: tuple[ModuleKind, ...] = ("norms", "routers", "vision", "other")
NOT_LOADED: tuple[ModuleKind, ...] = ("mtp",)  # unless speculative decoding is asked for
LATENT = ("q_a_proj", "kv_a_proj_with_mqa", "kv_a_proj", "q_down_proj", "kv_down_proj")
INDEXERS = ("indexer",)
KEY_VALUE = ("k_proj", "v_proj", "key", "value")
# These take the split activations in, so their columns are split; of the others the rows.
SPLIT_BY_COLUMNS = ("o_proj", "down_proj", "w2", "out_proj", "c_proj", "dense_4h_to_h", "fc2", "wo")
WIDE_TYPES = ("F32", "F64")  # the engine runs them in 16 bits
# Tiles of a kernel for MXFP4 experts, which are filled up to them: Marlin's, the largest of vLLM's.
MXFP4_HIDDEN, MXFP4_INNER = 256, 128


@dataclass(frozen=True)
class ShardedWeights:
    """A variant's weights by how they are spread."""

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
        """Bytes of weights on each of so many GPUs."""
        shared = self.key_value // min(gpus, self.key_value_heads)
        return self.everywhere + -(-self.split // gpus) + shared

    def filling_bytes(self, gpus: int) -> int:
        """Bytes on each of so many GPUs that MXFP4 experts grow by at most, to whole tiles."""
        if not self.mxfp4:
            return 0
        inner = -(-self.expert_inner // gpus)
        filled = _round_up(self.hidden, MXFP4_HIDDEN) * _round_up(inner, MXFP4_INNER)
        return self.mxfp4 * filled // (self.hidden * inner * gpus) - self.mxfp4 // gpus

    def obstacle(self, gpus: int) -> str:
        """Why the model cannot be spread over so many GPUs; empty where it can."""
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
    """Sort the variant's tensors by how they are spread."""
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
            if len(each.tensor.shape) == 2 and kind in ("attention", "mlp", "experts"):
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
    """Bytes in the GPU's memory: what is not quantized runs in 16 bits, however it is stored."""
    if not each.quantized and each.tensor.dtype in WIDE_TYPES:
        return 2 * each.tensor.elements
    return each.bytes


def _read_per_token(kind: ModuleKind, size: int, inspection: CheckpointInspection) -> int:
    """A token reads one row of the embedding, and only the experts that it is sent to."""
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
