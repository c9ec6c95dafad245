"""Distribution of a variant's weights over GPUs by tensor parallelism, and its obstacles.

The rules are vLLM's. Attention, MLP, expert and state-space matrices, embeddings and the output
head are split. Norms, routers and the narrow side of latent attention are on every GPU; a key-value
head is never split. Vision towers, which vLLM treats differently by model, count fully on every
GPU, which is an upper estimate.
"""

from __future__ import annotations

import math
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
FP8 = "F8_E4M3"
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
    experts: int = 0  # of a layer
    expert_bytes: int = 0  # of all layers' experts, which are in `split` as well
    expert_columns: frozenset[int] = frozenset()  # as `columns`, `grouped_columns` and `rows`
    expert_grouped_columns: frozenset[int] = frozenset()
    expert_rows: frozenset[int] = frozenset()
    mxfp4: int = 0  # bytes of MXFP4 experts, which are in `expert_bytes` as well
    hidden: int = 0  # width of these experts' input and output
    expert_inner: int = 0  # of one such expert

    def bytes_on_gpu(self, gpus: int, *, whole_experts: bool = False) -> int:
        """Return the bytes on the fullest GPU.

        Args:
            whole_experts: experts are divided by number and not by size (expert parallelism).
        """
        shared = self.key_value // min(gpus, self.key_value_heads)
        if whole_experts and self.experts:
            most = -(-self.experts // gpus)
            of_experts = self.expert_bytes * most // self.experts
            rest = self.split - self.expert_bytes
            return self.everywhere + -(-rest // gpus) + of_experts + shared
        return self.everywhere + -(-self.split // gpus) + shared

    def filling_bytes(self, gpus: int, *, whole_experts: bool = False) -> int:
        """Return the maximum padding of MXFP4 experts to full tiles, in bytes a GPU."""
        if not self.mxfp4:
            return 0
        inner = self.expert_inner if whole_experts else -(-self.expert_inner // gpus)
        filled = _round_up(self.hidden, MXFP4_HIDDEN) * _round_up(inner, MXFP4_INNER)
        unfilled = self.hidden * (inner if whole_experts else inner * gpus)
        on_gpu = self.mxfp4 // gpus if whole_experts else self.mxfp4
        return on_gpu * filled // unfilled - self.mxfp4 // gpus

    def obstacle(self, gpus: int, *, whole_experts: bool = False) -> str:
        """Return why the model cannot be split over `gpus` GPUs; empty if it can."""
        if self.heads % gpus:
            return f"{self.heads} attention heads cannot be split over {gpus} GPUs"
        kv = self.key_value_heads
        if not self.latent and kv % gpus and gpus % kv:
            return f"{kv} key-value heads cannot be split over {gpus} GPUs"
        sizes, grouped = self.columns | self.rows, self.grouped_columns
        if not whole_experts:
            sizes |= self.expert_columns | self.expert_rows
            grouped |= self.expert_grouped_columns
        for size in sorted(sizes):
            if size % gpus:
                return f"a layer of {size} rows or columns cannot be split over {gpus} GPUs"
        for size in sorted(grouped):
            if self.group and (size // gpus) % self.group:
                return (
                    f"groups of {self.group} do not divide the {size // gpus} columns "
                    f"that each of {gpus} GPUs gets of {size}"
                )
        return ""


def shards(inspection: CheckpointInspection, weights: VariantWeights) -> ShardedWeights:
    """Classify the variant's tensors by their distribution over GPUs."""
    everywhere = split = key_value = read = experts = mxfp4 = 0
    columns: dict[bool, set[int]] = {False: set(), True: set()}  # True: of experts
    grouped: dict[bool, set[int]] = {False: set(), True: set()}
    rows: dict[bool, set[int]] = {False: set(), True: set()}
    sizes = [size for form in weights.forms if (size := form.shared_columns)]
    block = None if weights.forms else _block_of_source(inspection.source.config)
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
            is_expert = kind == "experts"
            experts += size if is_expert else 0
            mxfp4 += size if is_mxfp4 and is_expert and each.tensor.dtype == "U8" else 0
            if is_linear_weight(each.name, each.tensor) and kind in MATRICES:
                height, width = each.tensor.shape
                if leaf in SPLIT_BY_COLUMNS:
                    columns[is_expert].add(width)
                    is_in_blocks = bool(block) and each.tensor.dtype == FP8
                    grouped[is_expert] |= {width} if each.quantized or is_in_blocks else set()
                else:
                    rows[is_expert].add(height)
    return ShardedWeights(
        everywhere=everywhere,
        split=split,
        key_value=key_value,
        key_value_heads=shape.key_value_heads,
        heads=shape.heads,
        columns=frozenset(columns[False]),
        grouped_columns=frozenset(grouped[False]),
        rows=frozenset(rows[False]),
        group=math.lcm(*sizes) if sizes else block,
        latent=inspection.cache.attention == "mla",
        read_per_token=read,
        experts=shape.experts,
        expert_bytes=experts,
        expert_columns=frozenset(columns[True]),
        expert_grouped_columns=frozenset(grouped[True]),
        expert_rows=frozenset(rows[True]),
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


def _block_of_source(config: dict[str, Any]) -> int | None:
    """Return the columns of an FP8 checkpoint's blocks; None without blocks."""
    said = text_level(config).get("quantization_config") or config.get("quantization_config")
    block = said.get("weight_block_size") if isinstance(said, dict) else None
    return (
        block[1] if isinstance(block, list) and len(block) == 2 and type(block[1]) is int else None
    )


def _round_up(size: int, tile: int) -> int:
    return -(-size // tile) * tile


def _leaf(name: str) -> str:
    parts = name.split(".")
    return parts[-2] if len(parts) > 1 else parts[0]


def _is_indexer(name: str) -> bool:
    return any(part in INDEXERS for part in name.split("."))
