"""Checks of the files next to the weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prepare.errors import CheckpointError, VerificationError
from recipes.checkpoints.chat_template import ModelGeneration
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.folder import AUXILIARY_FILES, CONFIG, matches
from recipes.checkpoints.small_files import small_names
from recipes.checkpoints.tokenizer_file import TOKENIZER, TokenizerFile
from recipes.checkpoints.weight_files import read_json, weight_files

# Weight formats that can run code when loaded, or that an engine could load instead.
OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".pkl", ".ckpt", ".h5", ".msgpack", ".gguf", ".npz"}
GENERATION = "generation_config.json"
VERSION = "transformers_version"
# Keys that quantization sets, or that do not describe the model.
QUANTIZER_KEYS = {
    *("quantization_config", "compression_config", "dtype", "torch_dtype", VERSION),
    *("_name_or_path", "_attn_implementation_autoset"),
}
# Keys of transformers 4 and 5 for the same facts; compared by `rope_settings`.
ROPE_KEYS = {"rope_theta", "rope_scaling", "rope_parameters"}
# Keys without which, or with others, it would be another model.
MODEL_KEYS = {
    *("architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("hidden_act", "rms_norm_eps", "sliding_window", "num_experts", "num_local_experts"),
    *("n_routed_experts", "num_experts_per_tok"),
}
# transformers may drop other keys that have default values.
REQUIRED_KEYS = MODEL_KEYS | {
    *("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"),
}
# transformers adds the types of layers when it saves.
DECIDING_KEYS = MODEL_KEYS | {"layer_types", "rope_parameters"}
ABSENT = object()
# The first that both have is compared.
OTHER_VOCABULARIES = ("tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "spiece.model")
# Parts of tokenizer.json that change how text becomes tokens, besides the vocabulary.
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
HINT = "compare it with the checkpoint that it was made of: prepare model THAT --variant ..."


def check_only_safetensors(variant: Path) -> None:
    """Reject pickled weights, and additional safetensors."""
    extra = [path for path in sorted(variant.iterdir()) if path.suffix in OTHER_WEIGHTS]
    extra += sorted(set(variant.glob("*.safetensors")) - set(weight_files(variant)))
    if extra:
        raise VerificationError(
            "the variant has a weight file that is not part of the model", where=str(extra[0])
        )


def check_auxiliary_files(source: Path, variant: Path) -> None:
    """Check that tokenizer, templates and similar files are unchanged.

    The generation config may have another transformers version.
    """
    names = {name for folder in (source, variant) for name in small_names(folder)}
    for name in sorted(name for name in names if matches(name, AUXILIARY_FILES)):
        before = source / name
        after = variant / name
        if before.is_file() != after.is_file():
            fault = "is missing from the variant" if before.is_file() else "was added to it"
        elif (
            not before.is_file()
            or before.read_bytes() == after.read_bytes()
            or (name == GENERATION and _unversioned(before) == _unversioned(after))
        ):
            continue
        else:
            fault = "differs from the source's"
        raise VerificationError(f"'{name}' {fault}", where=str(after))


def _unversioned(file: Path) -> dict[str, Any]:
    return {**read_json(file), VERSION: None}


def check_config(source: Path, variant: Path) -> None:
    """Check that config.json describes the same model; defaults may be absent."""
    for key, ours, theirs in _compare(read_json(source / CONFIG), read_json(variant / CONFIG), ""):
        where = f"{variant / 'config.json'}, key {key}"
        if theirs is not ABSENT and ours is not ABSENT:
            raise VerificationError(
                f"config.json has {_clip(theirs)} for '{key}', the source's has {_clip(ours)}",
                where=where,
                hint="quantize again; the quantizer read the checkpoint as another model",
            )
        if theirs is ABSENT and ours is not None and key.rpartition(".")[2] in REQUIRED_KEYS:
            raise VerificationError(
                f"config.json lacks the key '{key}', which the source sets to {_clip(ours)}",
                where=where,
            )


def check_adopted_files(source: Checkpoint, variant: Checkpoint) -> list[str]:
    """Check config and tokenizer of a variant that another program saved.

    Returns notes for differences that the gates judge. CheckpointError for another model or
    tokenizer.
    """
    differing = []
    for key, before, after in _compare(source.config, variant.config, ""):
        ours, theirs = (None if value is ABSENT else value for value in (before, after))
        if key.rpartition(".")[2] in DECIDING_KEYS and None not in (ours, theirs):
            raise CheckpointError(
                f"the variant is of another model: its config.json has {_clip(theirs)} for "
                f"'{key}', the source's has {_clip(ours)}",
                where=f"{variant.where}, key {key}",
                hint=HINT,
            )
        if (ours or None) != (theirs or None):  # a missing key is like one that is false or 0
            differing.append(key)
    notes = []
    if differing:
        notes.append(f"config.json differs from the source's in {', '.join(differing)}")
    notes += _check_tokenizer(source, variant)
    notes += _compare_generation(source.generation, variant.generation)
    return notes


def _compare_generation(given: ModelGeneration, made: ModelGeneration) -> Iterator[str]:
    """Yield notes on templates and defaults of sampling."""
    if made.template != given.template:
        yield (
            "the chat template differs from the source's: suites that ask in chat form compare "
            "answers to other prompts, which is refused; copy the source's to judge the weights"
        )
    templates = {*given.named_templates, *made.named_templates}
    others = [
        name
        for name in sorted(templates)
        if given.named_templates.get(name) != made.named_templates.get(name)
    ]
    if others:
        yield (
            f"the named chat templates differ from the source's: {_clip(', '.join(others))}; a "
            "server takes the one called tool_use for requests with tools"
        )
    keys = sorted(
        key
        for key in {*given.sampling, *made.sampling} - {VERSION, "_from_model_config"}
        if given.sampling.get(key) != made.sampling.get(key)
    )
    if keys:
        yield (
            f"{GENERATION} differs from the source's in {', '.join(keys)}: servers take defaults "
            "from it, and the gates set their own"
        )


def _compare(
    before: dict[str, Any], after: dict[str, Any], above: str
) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted({*before, *after} - QUANTIZER_KEYS - ROPE_KEYS):
        ours = before.get(key, ABSENT)
        theirs = after.get(key, ABSENT)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _compare(ours, theirs, f"{above}{key}.")
        elif ours != theirs:
            yield above + key, ours, theirs
    if (rope := _rope_settings(before)) != (other := _rope_settings(after)):
        yield f"{above}rope_parameters", rope, other


def _rope_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return rotary settings in one form, without defaults."""
    rope: dict[str, Any] = {}
    if config.get("rope_theta") is not None:
        rope["rope_theta"] = config["rope_theta"]
    for key in ("rope_scaling", "rope_parameters"):
        settings = config.get(key)
        rope |= settings if isinstance(settings, dict) else {}
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    return rope | ({} if kind in (None, "default") else {"rope_type": kind})


def _check_tokenizer(source: Checkpoint, variant: Checkpoint) -> Iterator[str]:
    """Compare vocabularies, and yield a note on other parts."""
    before = source.tokenizer
    after = variant.tokenizer
    if before is not None and after is not None:
        for part, is_same in (
            ("vocabulary", before.vocabulary == after.vocabulary),
            ("merges", before.merges == after.merges),
            ("added tokens", _added_tokens(before) == _added_tokens(after)),
        ):
            if not is_same:
                raise _other_tokenizer(variant.small.path(TOKENIZER), f"other {part}")
        parts = [part for part in PARTS if before.parts.get(part) != after.parts.get(part)]
        ours = before.parts["model"]
        theirs = after.parts["model"]
        parts += [
            f"model.{key}"
            for key in sorted({*ours, *theirs})
            if (ours.get(key) or None) != (theirs.get(key) or None)
        ]
        if parts:
            yield f"{TOKENIZER} differs from the source's in {', '.join(parts)}"
        return
    for name in OTHER_VOCABULARIES:
        if name in source.small and name in variant.small:
            if source.digest_of(name) != variant.digest_of(name):
                raise _other_tokenizer(variant.small.path(name), "another vocabulary")
            return
    raise _other_tokenizer(Path(variant.where).parent, "no tokenizer file that the source has too")


def _other_tokenizer(where: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"the variant's tokenizer is not the source's: it has {what}",
        where=str(where),
        hint="copy the source's tokenizer files into a copy of the variant, if it was made with "
        "them; " + HINT,
    )


def _added_tokens(tokenizer: TokenizerFile) -> list[str]:
    tokens = tokenizer.parts.get("added_tokens") or []
    return sorted(str([token.get(key) for key in ("id", "content", "special")]) for token in tokens)


def _clip(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
