"""A checkpoint saved by transformers 5, prepared for a library that uses transformers 4.

Version 4 silently ignores version 5's `rope_parameters`, `dtype` and tokenizers' names: it uses a
`rope_theta` of 10,000 for any model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prepare.errors import StageError
from prepare.untrusted import read_json_file

CONFIG = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


def transformers4_view(checkpoint: Path, view: Path) -> Path:
    """Return the checkpoint's folder if version 4 reads it correctly, else a converted `view`."""
    rewritten = {}
    for name, rewrite in ((CONFIG, config_of_4), (TOKENIZER_CONFIG, tokenizer_config_of_4)):
        file = checkpoint / name
        if not file.is_file():
            continue
        now = read_json_file(file, finite=False)
        then = rewrite(now)
        if then != now:
            rewritten[name] = then
    if not rewritten:
        return checkpoint
    for file in checkpoint.iterdir():
        if file.name not in rewritten:
            (view / file.name).symlink_to(file.resolve())
    for name, content in rewritten.items():
        (view / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    return view


def config_of_4(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json in version 4's form, maybe unchanged."""
    converted = dict(config)
    if "dtype" in converted:
        converted.setdefault("torch_dtype", converted.pop("dtype"))
    if converted.get("model_type") == "qwen3_moe" and "num_local_experts" in converted:
        converted.setdefault("num_experts", converted.pop("num_local_experts"))
    rope = converted.pop("rope_parameters", None)
    if not rope:
        return converted
    if any(isinstance(value, dict) for value in rope.values()):
        raise StageError(
            "the rotary embedding differs by kind of layer, which transformers 4 has no form for",
            where=f"{CONFIG}, key rope_parameters",
            hint="use the recipe awq-w4a16, which is AWQ by llm-compressor",
        )
    rope = dict(rope)
    theta = rope.pop("rope_theta", None)
    share = rope.pop("partial_rotary_factor", None)
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    # GPT-NeoX has other names for these two.
    names = {"gpt_neox": ("rotary_emb_base", "rotary_pct")}
    theta_name, share_name = names.get(
        str(config.get("model_type")), ("rope_theta", "partial_rotary_factor")
    )
    if theta is not None:
        converted[theta_name] = theta
    if share is not None:
        converted[share_name] = share
    if kind == "longrope":
        # Phi-3 takes exactly three keys, by the old name, and the trained length next to them.
        length = rope.pop("original_max_position_embeddings", None)
        if length is not None:
            converted.setdefault("original_max_position_embeddings", length)
        converted["rope_scaling"] = {"type": kind, **rope}
    elif kind != "default":
        converted["rope_scaling"] = {"rope_type": kind, **rope}
    return converted


def tokenizer_config_of_4(config: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer_config.json in version 4's form."""
    converted = dict(config)
    if converted.get("tokenizer_class") == "TokenizersBackend":
        converted["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(converted.get("extra_special_tokens"), list):
        converted["additional_special_tokens"] = converted.pop("extra_special_tokens")
    return converted
