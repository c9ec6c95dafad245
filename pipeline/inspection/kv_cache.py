"""Memory of keys and values: grouped-query and latent attention, sliding windows.

The estimate follows vLLM's block pool (0.32) and is comparable with the "KV cache size" in its log.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import CheckpointError, UsageError
from pipeline.inspection.model_shape import ModelShape, read_positive_int, text_level

GIB = 2**30
ELEMENT_BYTES = {
    "auto": 2,
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
# Models whose latent projections the engine expands to full heads before caching.
EXPANDED_LATENT = ("minicpm3",)
# vLLM prepares a batch while the previous one runs, and frees blocks that left a window only after
# a batch.
BATCHES_IN_FLIGHT = 2
# Two kinds of layers whose counts have at most this ratio share blocks of the larger count.
NEARLY_EQUAL = 1.5

Window = int | None  # tokens a layer looks back; None for all


@dataclass(frozen=True)
class KvCapacity:
    """Capacity of a cache."""

    blocks: int  # blocks of the pool
    tokens: int  # as in vLLM's log: sequences times context
    sequences: float  # concurrent sequences of full context; fractional


@dataclass(frozen=True)
class KvCacheSpec:
    """Cache layout of one token."""

    attention: str  # "mha", "gqa" or "mla"
    heads: int  # key-value heads; 1 for latent attention
    # Elements of one head for one token and layer: key and value, or the latent vector with its
    # rotary part.
    width: int
    windows: tuple[Window, ...]  # of the layers with a KV cache, in order
    notes: tuple[str, ...] = ()  # uncounted parts

    def heads_on_gpu(self, tensor_parallel: int) -> int:
        """Return heads on each GPU; with more GPUs than heads they are replicated."""
        return max(1, self.heads // tensor_parallel)

    def layer_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        return self.heads_on_gpu(tensor_parallel) * self.width * element_bytes

    def token_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        return len(self.windows) * self.layer_bytes(element_bytes, tensor_parallel)

    def groups(self) -> tuple[int, list[Window]]:
        """Return the layers of each block table, and the window of each table.

        All tables have the same number of layers, each with one window.
        """
        counts = Counter(self.windows)
        if not counts:
            return 0, []
        smallest, largest = min(counts.values()), max(counts.values())
        layers = largest if largest < smallest * NEARLY_EQUAL else smallest
        return layers, [window for window, n in counts.items() for _ in range(-(-n // layers))]

    def capacity(
        self,
        memory: int,
        *,
        context: int,
        block_size: int,
        element_bytes: int,
        tensor_parallel: int = 1,
        in_flight: int = 2048,
        batches: int = BATCHES_IN_FLIGHT,
    ) -> KvCapacity:
        """Return the capacity of this much memory.

        Args:
            memory: bytes on each GPU.
            context: tokens of a sequence (vLLM's max-model-len).
            block_size: tokens of a block.
            tensor_parallel: GPUs that share the heads.
            in_flight: tokens of one step (max-num-batched-tokens); layers with a sliding window
                also hold
            these, for each batch in progress.
            batches: concurrent batches: two with vLLM's async scheduling, one without.
        """
        layers, windows = self.groups()
        block = layers * block_size * self.layer_bytes(element_bytes, tensor_parallel)
        if not block:
            return KvCapacity(blocks=0, tokens=0, sequences=0.0)
        needed = sum(
            _blocks(window, context, block_size, batches * in_flight) for window in windows
        )
        blocks = max(0, memory) // block
        # vLLM also rounds a float to tokens.
        sequences = blocks / needed
        return KvCapacity(blocks=blocks, tokens=int(sequences * context), sequences=sequences)


def element_bytes(dtype: str, model_bytes: int = 2) -> int:
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
    """Return the cache layout from config.json."""
    level = text_level(config)
    windows, notes = _windows(level, shape.layers, where)
    rank = read_positive_int(level, ("kv_lora_rank",), where)
    if rank is None:
        kind = "mha" if shape.key_value_heads == shape.heads else "gqa"
        return KvCacheSpec(kind, shape.key_value_heads, 2 * shape.head_width, windows, notes)
    rotary = read_positive_int(level, ("qk_rope_head_dim",), where) or 0
    if shape.model_type in EXPANDED_LATENT:
        straight = read_positive_int(level, ("qk_nope_head_dim",), where) or 0
        return KvCacheSpec("mha", shape.heads, 2 * (straight + rotary), windows, notes)
    if level.get("index_head_dim"):
        notes = (*notes, "the index cache of sparse attention is not counted")
    return KvCacheSpec("mla", 1, rank + rotary, windows, notes)


def _blocks(window: Window, context: int, block_size: int, in_flight: int) -> int:
    if window is None:
        return -(-context // block_size)
    # One more, because a window can start inside a block.
    return -(-min(window - 1 + in_flight, context) // block_size) + 1


def _windows(
    level: dict[str, Any], layers: int, where: str
) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    window = read_positive_int(level, ("sliding_window",), where)
    if level.get("use_sliding_window") is False:
        window = None
    kinds = level.get("layer_types")
    if kinds is not None:
        found, notes = _windows_by_layer_types(kinds, window, level, layers, where)
    else:
        found, notes = _windows_by_pattern(level, window, layers, where), ()
    if not level.get("num_kv_shared_layers"):
        return tuple(found), notes
    # The last layers use earlier layers' keys and values (Gemma 3n).
    shared = read_positive_int(level, ("num_kv_shared_layers",), where) or 0
    return tuple(found[: len(found) - shared]), notes


def _windows_by_layer_types(
    kinds: Any, window: Window, level: dict[str, Any], layers: int, where: str
) -> tuple[list[Window], tuple[str, ...]]:
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise CheckpointError(
            f"config.json has {layers} layers, and layer_types is not a list of as many",
            where=f"{where}, key layer_types",
            hint="download config.json again",
        )
    found: list[Window] = []
    without = 0
    for kind in kinds:
        if kind == "full_attention":
            found.append(None)
        elif kind == "sliding_attention":
            found.append(window)
        elif kind == "chunked_attention":
            found.append(read_positive_int(level, ("attention_chunk_size",), where))
        else:
            without += 1
    note = f"the fixed state of {without} layers without a KV cache is not counted"
    return found, (note,) if without else ()


def _windows_by_pattern(
    level: dict[str, Any], window: Window, layers: int, where: str
) -> list[Window]:
    """Return windows without layer_types: all, all except every n-th, or after some layer."""
    if window is None:
        return [None] * layers
    every = read_positive_int(level, ("sliding_window_pattern",), where)
    if every is None and level.get("model_type") == "gemma2":
        every = 2
    if every is not None:
        return [None if (layer + 1) % every == 0 else window for layer in range(layers)]
    if level.get("use_sliding_window") is True:  # Qwen 2: the first layers have full attention
        first = level.get("max_window_layers")
        first = first if type(first) is int and first >= 0 else 0
        return [None if layer < first else window for layer in range(layers)]
    return [window] * layers
