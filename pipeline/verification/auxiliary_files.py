"""Checks of auxiliary files: tokenizer and templates unchanged, config.json of the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.checkpoint.folder import AUXILIARY_FILES, matches
from pipeline.checkpoint.weight_files import read_json, weight_files
from pipeline.core.errors import VerificationError

# Weight formats that can run code when loaded, or that an engine could load instead.
OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".pkl", ".ckpt", ".h5", ".msgpack", ".gguf", ".npz"}
GENERATION = "generation_config.json"
VERSION = "transformers_version"
# Keys that quantization sets, or that do not describe the model.
QUANTIZER_KEYS = frozenset(
    {
        "quantization_config",
        "compression_config",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "_name_or_path",
        "_attn_implementation_autoset",
    }
)
# Keys of transformers 4 and 5 for the same facts; compared by `rope_settings`.
ROPE_KEYS = frozenset({"rope_theta", "rope_scaling", "rope_parameters"})
# Keys without which, or with others, it would be another model.
MODEL_KEYS = frozenset(
    {
        "architectures",
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "hidden_act",
        "rms_norm_eps",
        "sliding_window",
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "num_experts_per_tok",
    }
)
# transformers may drop other keys that have default values.
REQUIRED_KEYS = MODEL_KEYS | {
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}


def check_only_safetensors(variant: Path) -> None:
    """Reject pickled weights, and safetensors that are not part of the model."""
    for path in sorted(variant.iterdir()):
        if path.suffix in OTHER_WEIGHTS:
            raise VerificationError(
                "the variant has a weight file that is not safetensors", where=str(path)
            )
    strangers = sorted(set(variant.glob("*.safetensors")) - set(weight_files(variant)))
    if strangers:
        raise VerificationError(
            "the variant has a weight file that is not part of the model", where=str(strangers[0])
        )


def check_auxiliary_files(source: Path, variant: Path) -> None:
    """Check that tokenizer, templates and similar files are unchanged.

    The generation config may differ in its transformers version.
    """
    names = {path.name for folder in (source, variant) for path in folder.iterdir()}
    for name in sorted(name for name in names if matches(name, AUXILIARY_FILES)):
        before, after = source / name, variant / name
        if before.is_file() != after.is_file():
            raise VerificationError(
                f"'{name}' {'is missing from' if before.is_file() else 'was added to'} the variant",
                where=str(after),
            )
        if before.is_file() and not _has_same_content(before, after):
            raise VerificationError(f"'{name}' differs from the source's", where=str(after))


def _has_same_content(before: Path, after: Path) -> bool:
    if before.read_bytes() == after.read_bytes():
        return True
    if before.name != GENERATION:
        return False
    return {**read_json(before), VERSION: None} == {**read_json(after), VERSION: None}


def check_config(source: Path, variant: Path) -> list[str]:
    """Check that config.json describes the same model.

    Returns:
        keys of the source that the variant lacks because they have default values.
    """
    before, after = read_json(source / "config.json"), read_json(variant / "config.json")
    return _check_level(before, after, "", variant / "config.json")


def _check_level(
    before: dict[str, Any], after: dict[str, Any], above: str, where: Path
) -> list[str]:
    dropped = []
    for key in sorted(before.keys() - QUANTIZER_KEYS - ROPE_KEYS):
        name, value = above + key, before[key]
        if key not in after:
            if key in REQUIRED_KEYS and value is not None:
                raise VerificationError(
                    f"config.json lacks the key '{name}', "
                    f"which the source sets to {clip_value(value)}",
                    where=f"{where}, key {name}",
                )
            dropped.append(name)
        elif isinstance(value, dict) and isinstance(after[key], dict):
            dropped += _check_level(value, after[key], f"{name}.", where)
        elif value != after[key]:
            raise VerificationError(
                f"config.json has {clip_value(after[key])} for '{name}', "
                f"the source's has {clip_value(value)}",
                where=f"{where}, key {name}",
                hint="quantize again; the quantizer read the checkpoint as another model",
            )
    if rope_settings(before) != rope_settings(after):
        raise VerificationError(
            f"config.json has {clip_value(rope_settings(after))} for the rotary embedding, "
            f"the source's has {clip_value(rope_settings(before))}",
            where=f"{where}, key {above}rope_parameters",
        )
    return dropped


def rope_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the rotary embedding's settings in one form, without defaults."""
    found: dict[str, Any] = {}
    if config.get("rope_theta") is not None:
        found["rope_theta"] = config["rope_theta"]
    for key in ("rope_scaling", "rope_parameters"):
        settings = config.get(key)
        found |= settings if isinstance(settings, dict) else {}
    kind = found.pop("rope_type", found.pop("type", "default"))
    found.pop("type", None)
    return found | ({} if kind in (None, "default") else {"rope_type": kind})


def clip_value(value: Any) -> str:
    """Return the value as short text."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
