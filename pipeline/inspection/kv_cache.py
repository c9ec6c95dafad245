"""Memory of keys, values and states: grouped-query, latent and sparse attention, windows, Mamba.

The estimate follows vLLM's block pool (0.33) and is comparable with the "KV cache size" in its log.
The reference has a table of both for published models.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.core.errors import UsageError
from pipeline.inspection.layer_kinds import LayerKind, UnknownPatternError, layer_kinds
from pipeline.inspection.layer_state import LayerState, layer_state
from pipeline.inspection.model_shape import ModelShape, read_positive_int, text_level

GIB = 2**30
ELEMENT_BYTES: dict[str, float] = {
    "auto": 2,
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    # With a 32-bit scale for each token's key and value of a head; fewer bytes above 64 elements.
    "fp8_per_token_head": 1 + 4 / 64,
}
# Models whose latent projections the engine expands to full heads before caching.
EXPANDED_LATENT = ("minicpm3",)
# vLLM prepares a batch while the previous one runs, and frees blocks that left a window only after
# a batch.
BATCHES_IN_FLIGHT = 2
# Two kinds of layers whose counts have at most this ratio share blocks of the larger count.
NEARLY_EQUAL = 1.5
# Tokens of a block of latent attention next to states, at least.
LATENT_BLOCK = 128
# Sparse attention stores a key of its index in 8 bits, and latents in FP8, with scales in 32 bits.
SCALE_GROUP, SCALE_BYTES = 128, 4
# Keys that change what layers cache, and that are not read here.
UNREAD = (
    "attention_other_setting",
    "compress_ratios",
    "per_layer_config",
    "swa_head_dim",
    "swa_num_key_value_heads",
)

Window = int | None  # tokens a layer looks back; None for all


@dataclass(frozen=True)
class KvCapacity:
    """Capacity of a cache."""

    blocks: int  # blocks of the pool
    tokens: int  # as in vLLM's log: sequences times context
    sequences: float  # concurrent sequences of full context; fractional


@dataclass(frozen=True)
class LayerCache:
    """What the attention of one layer caches."""

    heads: int  # key-value heads; 1 for latent attention
    # Elements of one head for one token: key and value, or the latent vector with its rotary part.
    width: int
    window: Window = None
    is_chunked: bool = False  # the window starts again at its multiples
    index_bytes: int = 0  # of a sparse index, for one token on each GPU
    # Bytes of one token in FP8, where an element is not a byte: sparse latent attention keeps
    # scales, and the rotary part in 16 bits.
    fp8_bytes: int | None = None

    def heads_on_gpu(self, tensor_parallel: int) -> int:
        """Return heads on each GPU; with more GPUs than heads they are replicated."""
        return max(1, self.heads // tensor_parallel)

    def token_bytes(self, element_bytes: float, tensor_parallel: int = 1) -> int:
        """Return bytes of one token on each GPU, without the index."""
        if element_bytes == 1 and self.fp8_bytes is not None:
            return self.fp8_bytes
        return math.ceil(self.heads_on_gpu(tensor_parallel) * self.width * element_bytes)

    def blocks(self, context: int, block_size: int, in_flight: int) -> int:
        """Return the blocks of a sequence of `context` tokens."""
        if self.window is None:
            return -(-context // block_size)
        if self.is_chunked:
            return -(-min(self.window + in_flight, context) // block_size)
        # One more, because a window can start inside a block.
        return -(-min(self.window - 1 + in_flight, context) // block_size) + 1


@dataclass(frozen=True)
class KvCacheSpec:
    """Caches of a model's layers."""

    attention: str  # "mha", "gqa" or "mla"
    layers: tuple[LayerCache, ...]  # with attention, in order
    states: int = 0  # layers with a fixed state for each sequence
    state: LayerState | None = None  # of each of these
    unknown: str = ""  # why the cache is not known; then there are no layers

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """Windows of the layers with attention."""
        return tuple(each.window for each in self.layers)

    def token_bytes(self, element_bytes: float, tensor_parallel: int = 1) -> int:
        """Return bytes of one token in all layers on each GPU, inside every window."""
        return sum(
            each.token_bytes(element_bytes, tensor_parallel) + each.index_bytes
            for each in self.layers
        )

    def state_bytes(self, tensor_parallel: int = 1) -> int:
        """Return bytes of the states of one sequence on each GPU."""
        return self.states * self.state.bytes_on_gpu(tensor_parallel) if self.state else 0

    def groups(self) -> tuple[int, list[LayerCache | LayerState]]:
        """Return the layers of each block table, and what each table's layers cache.

        All tables have the same number of layers.
        """
        counts: Counter[LayerCache | LayerState] = Counter(self.layers)
        if self.state:
            counts[self.state] = self.states
        if not counts:
            return 0, []
        smallest, largest = min(counts.values()), max(counts.values())
        layers = largest if largest < smallest * NEARLY_EQUAL else smallest
        return layers, [each for each, n in counts.items() for _ in range(-(-n // layers))]

    def capacity(
        self,
        memory: int,
        *,
        context: int,
        block_size: int,
        element_bytes: float,
        tensor_parallel: int = 1,
        in_flight: int = 2048,
        batches: int = BATCHES_IN_FLIGHT,
    ) -> KvCapacity:
        """Return the capacity of this much memory.

        Args:
            memory: bytes on each GPU.
            context: tokens of a sequence (vLLM's max-model-len).
            block_size: tokens of a block, where no state makes it larger.
            tensor_parallel: GPUs that share the heads.
            in_flight: tokens of one step (max-num-batched-tokens); layers with a sliding window
                also hold
            these, for each batch in progress.
            batches: concurrent batches: two with vLLM's async scheduling, one without.
        """
        if not self.layers:
            return KvCapacity(blocks=0, tokens=0, sequences=0.0)
        token = max(each.token_bytes(element_bytes, tensor_parallel) for each in self.layers)
        if self.state:  # a block of attention is as large as a state, and states are filled up
            step = math.lcm(block_size, self.state.block_multiple)
            if self.attention == "mla":
                step = math.lcm(step, LATENT_BLOCK)
            block_size = step * -(-self.state.bytes_on_gpu(tensor_parallel) // (step * token))
        held = batches * in_flight
        if self.state is None and not any(self.windows):  # one table for all widths
            block = block_size * self.token_bytes(element_bytes, tensor_parallel)
            needed = -(-context // block_size)
        else:
            layers, tables = self.groups()
            block = layers * block_size * token
            needed = 0
            for each in tables:
                if isinstance(each, LayerState):
                    needed += each.blocks
                    continue
                # All blocks have the same bytes: more tokens of narrow layers, or a filled block.
                own = each.token_bytes(element_bytes, tensor_parallel)
                tokens = block_size * token // own if token % own == 0 else block_size
                needed += each.blocks(context, tokens, held)
        blocks = max(0, memory) // block
        # vLLM also rounds a float to tokens.
        sequences = blocks / needed
        return KvCapacity(blocks=blocks, tokens=int(sequences * context), sequences=sequences)


def element_bytes(dtype: str, model_bytes: int = 2) -> float:
    """Return bytes of an element for a kv-cache-dtype; `auto` is the model's type.

    Raises:
        UsageError: the type is unknown.
    """
    if dtype not in ELEMENT_BYTES:
        raise UsageError(
            f"the size of the KV cache type '{dtype}' is not known",
            where="profile key kv_cache_dtype",
            hint=f"known: {', '.join(ELEMENT_BYTES)}",
        )
    return model_bytes if dtype == "auto" else ELEMENT_BYTES[dtype]


def kv_cache(config: dict[str, Any], shape: ModelShape, where: str) -> KvCacheSpec:
    """Return the caches of the layers, from config.json; without layers if they are not known."""
    level = text_level(config)
    try:
        if found := [key for key in UNREAD if level.get(key)]:
            raise UnknownPatternError(f"its layers follow {found[0]}")
        kinds = layer_kinds(level, shape.layers, where)
        attention, layers = _attention(level, shape, kinds, where)
        states = sum(kind in ("state", "parallel") for kind in kinds)
        state = layer_state(level, shape, where) if states else None
    except UnknownPatternError as error:
        return KvCacheSpec("not known", (), unknown=str(error))
    if not layers:
        return KvCacheSpec("not known", (), unknown="no layer has attention")
    return KvCacheSpec(attention, layers, states, state)


def _attention(
    level: dict[str, Any], shape: ModelShape, kinds: list[LayerKind], where: str
) -> tuple[str, tuple[LayerCache, ...]]:
    """Return the kind of attention, and the caches of the layers that have it."""
    rank = read_positive_int(level, ("kv_lora_rank",), where)
    rotary = read_positive_int(level, ("qk_rope_head_dim",), where) or 0
    attention = "mha" if shape.key_value_heads == shape.heads else "gqa"
    if rank is None:
        values = read_positive_int(level, ("v_head_dim",), where)
        if values not in (None, shape.head_width):
            raise UnknownPatternError("its keys and values have different widths")
        found = [
            LayerCache(*_heads(level, shape, number, kind, where), **_look_back(level, kind, where))
            for number, kind in enumerate(kinds)
            if kind not in ("state", "none")
        ]
        # The last layers use earlier layers' keys and values (Gemma 3n and 4).
        shared = (
            read_positive_int(level, ("num_kv_shared_layers",), where)
            if level.get("num_kv_shared_layers")
            else 0
        )
        return attention, tuple(found[: len(found) - (shared or 0)])
    if shape.model_type in EXPANDED_LATENT:
        straight = read_positive_int(level, ("qk_nope_head_dim",), where) or 0
        one = LayerCache(shape.heads, 2 * (straight + rotary))
        attention = "mha"
    else:
        index = read_positive_int(level, ("index_head_dim",), where) or 0
        one, attention = LayerCache(1, rank + rotary), "mla"
        if index:
            with_scales = rank + _scale_bytes(rank) + 2 * rotary
            one = LayerCache(
                *(1, rank + rotary),
                index_bytes=index + _scale_bytes(index),
                fp8_bytes=with_scales,
            )
    if set(kinds) & {"sliding", "chunked", "parallel"}:
        raise UnknownPatternError("it has latent attention with windows")
    return attention, tuple(one for kind in kinds if kind == "full")


def _scale_bytes(elements: int) -> int:
    return -(-elements // SCALE_GROUP) * SCALE_BYTES


def _heads(
    level: dict[str, Any], shape: ModelShape, number: int, kind: LayerKind, where: str
) -> tuple[int, int]:
    """Return a layer's key-value heads, and the width of a key and a value together."""
    heads, width = shape.key_value_heads, shape.head_width
    if kind == "full":  # Gemma 4: global layers have fewer and wider heads
        heads = read_positive_int(level, ("num_global_key_value_heads",), where) or heads
        width = read_positive_int(level, ("global_head_dim",), where) or width
    return heads, 2 * width


def _look_back(level: dict[str, Any], kind: LayerKind, where: str) -> dict[str, Any]:
    if kind == "sliding" and level.get("use_sliding_window") is not False:
        return {"window": read_positive_int(level, ("sliding_window",), where)}
    if kind == "chunked":
        chunk = read_positive_int(level, ("attention_chunk_size",), where)
        return {"window": chunk, "is_chunked": True}
    return {}
