"""Number types of tensors in a GGUF file, by llama.cpp's rules for each kind of file.

llama.cpp's `llama_tensor_get_type`, for dense and MoE models and without an importance matrix.
Types that pack 256 columns are replaced where 256 does not divide a matrix's columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Type of most matrices, by the kind of file.
MOST = {
    "Q8_0": "Q8_0",
    "Q6_K": "Q6_K",
    "Q5_K_M": "Q5_K",
    "Q4_K_M": "Q4_K",
    "Q3_K_M": "Q3_K",
    "Q2_K": "Q2_K",
}
SUPER_BLOCK, BLOCK = 256, 32  # columns
INSTEAD = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
# Matrices that stay as they are.
_UNQUANTIZED = re.compile(
    r"_norm\.weight$|ffn_gate_inp|altup|laurel|per_layer_model_proj|position_embd|token_types"
    r"|ssm_|time_mix|shortconv|attn_rel_b"
)
_FEW_GROUPED = 4  # heads that share a key head, from which on values get more bits


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model that decide types."""

    layers: int
    has_output: bool  # an output matrix that is not the embedding
    grouped: int  # heads that share a key head


def choose_type(kind: str, name: str, shape: tuple[int, ...], facts: ModelFacts) -> str | None:
    """Return ggml's name of a tensor's type; None if it stays as it is.

    Args:
        kind: of file, such as Q4_K_M.
        name: GGUF's, such as `blk.0.attn_v.weight`.
        shape: outermost dimension first.
    """
    is_matrix = len(shape) > 1 and name.endswith(".weight")
    if not is_matrix or _UNQUANTIZED.search(name) or shape[-1] % BLOCK:
        return None
    found = _by_place(kind, name, facts)
    return INSTEAD.get(found, found) if shape[-1] % SUPER_BLOCK else found


def _by_place(kind: str, name: str, facts: ModelFacts) -> str:
    most = MOST[kind]
    if name == "output.weight" or (name == "token_embd.weight" and not facts.has_output):
        return most if kind == "Q8_0" else "Q6_K"
    found = re.match(r"blk\.(\d+)\.(attn_v|attn_qkv|attn_output|ffn_down)", name)
    if found is None or kind in ("Q8_0", "Q6_K"):
        return most
    layer, place = int(found[1]), found[2]
    more = _gets_more(layer, facts.layers)
    rules: dict[str, dict[str, str]] = {
        "Q2_K": {
            "attn_v": "Q4_K" if facts.grouped >= _FEW_GROUPED else "Q3_K",
            "attn_output": "Q3_K",
            "ffn_down": "Q3_K",
        },
        "Q3_K_M": {
            "attn_v": "Q5_K" if layer < 2 else "Q4_K",
            "attn_qkv": "Q4_K",
            "attn_output": "Q4_K",
            "ffn_down": "Q5_K" if layer < facts.layers // 16 else "Q4_K",
        },
        "Q4_K_M": {
            "attn_v": "Q6_K" if more else most,
            "attn_qkv": "Q5_K",
            "ffn_down": "Q6_K" if more else most,
        },
        "Q5_K_M": {
            "attn_v": "Q6_K" if more else most,
            "attn_qkv": "Q6_K",
            "ffn_down": "Q6_K" if more else most,
        },
    }
    return rules[kind].get(place, most)


def _gets_more(layer: int, layers: int) -> bool:
    """Return whether a layer is among the first or last eighth, or a third one between."""
    first = layers // 8
    return layer < first or layer >= 7 * layers // 8 or (layer - first) % 3 == 2
