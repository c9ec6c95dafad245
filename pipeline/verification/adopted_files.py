"""Checks of the files next to weights that others quantized: the same model and tokens.

Another program saves these files again, so their bytes differ. What decides over token ids and
shapes must be the source's; other differences are reported, and the gates decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.checkpoint.weight_files import read_json
from pipeline.core.digest import digest_file
from pipeline.core.errors import CheckpointError
from pipeline.inspection.chat_template import folder_generation
from pipeline.verification.auxiliary_files import (
    MODEL_KEYS,
    QUANTIZER_KEYS,
    VERSION,
    clip_value,
    rope_settings,
)

TOKENIZER = "tokenizer.json"
# In the order of preference; the first that both have is compared.
OTHER_VOCABULARIES = ("tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "spiece.model")
# Parts of tokenizer.json that change how text becomes tokens, besides the vocabulary.
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
COMPARED = {"vocab", "merges"}
# transformers adds the types of layers when it saves.
DECIDING_KEYS = MODEL_KEYS | {"layer_types"}
HINT = "compare it with the checkpoint that it was made of: prepare model THAT --variant ..."


def check_adopted_files(source: Path, variant: Path) -> list[str]:
    """Check config and tokenizer of a variant.

    Returns:
        differences that the gates judge, as notes.

    Raises:
        CheckpointError: it is another model, or its tokenizer gives other tokens.
    """
    before, after = read_json(source / "config.json"), read_json(variant / "config.json")
    notes = list(_differing_keys(before, after, "", str(variant / "config.json")))
    found = [f"config.json differs from the source's in {', '.join(notes)}"] if notes else []
    found += _check_tokenizer(source, variant)
    theirs, ours = folder_generation(variant), folder_generation(source)
    if theirs.template != ours.template:
        found.append(
            "the chat template differs from the source's: suites that ask in chat form compare "
            "answers to other prompts, which is refused; copy the source's to judge the weights"
        )
    keys = sorted((ours.sampling.keys() | theirs.sampling.keys()) - {VERSION, "_from_model_config"})
    changed = [key for key in keys if ours.sampling.get(key) != theirs.sampling.get(key)]
    if changed:
        found.append(
            f"generation_config.json differs from the source's in {', '.join(changed)}: servers "
            "take defaults from it, and the gates set their own"
        )
    return found


def _differing_keys(
    before: dict[str, Any], after: dict[str, Any], above: str, where: str
) -> Iterator[str]:
    for key in sorted((before.keys() | after.keys()) - QUANTIZER_KEYS):
        ours, theirs = before.get(key), after.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict) and not key.startswith("rope_"):
            yield from _differing_keys(ours, theirs, f"{above}{key}.", where)
        elif key in DECIDING_KEYS and ours != theirs and None not in (ours, theirs):
            raise _other_model(above + key, ours, theirs, where)
        elif (ours or None) != (theirs or None) and not key.startswith("rope_"):
            yield above + key  # a key that is missing is like one that is false or 0
    if rope_settings(before) != rope_settings(after):
        ours, theirs = rope_settings(before), rope_settings(after)
        raise _other_model(f"{above}rope_parameters", ours, theirs, where)


def _other_model(key: str, ours: Any, theirs: Any, where: str) -> CheckpointError:
    return CheckpointError(
        f"the variant is of another model: its config.json has {clip_value(theirs)} for '{key}', "
        f"the source's has {clip_value(ours)}",
        where=f"{where}, key {key}",
        hint=HINT,
    )


def _check_tokenizer(source: Path, variant: Path) -> Iterator[str]:
    """Compare the vocabularies, and yield notes on other parts."""
    if (source / TOKENIZER).is_file() and (variant / TOKENIZER).is_file():
        before, after = read_json(source / TOKENIZER), read_json(variant / TOKENIZER)
        for part, ours, theirs in (
            ("vocabulary", _vocabulary(before), _vocabulary(after)),
            ("merges", _merges(before), _merges(after)),
            ("added tokens", _added_tokens(before), _added_tokens(after)),
        ):
            if ours != theirs:
                raise _other_tokenizer(variant / TOKENIZER, f"other {part}")
        parts = [part for part in PARTS if before.get(part) != after.get(part)]
        ours, theirs = _model(before), _model(after)
        parts += [
            f"model.{key}"
            for key in sorted((ours.keys() | theirs.keys()) - COMPARED)
            if (ours.get(key) or None) != (theirs.get(key) or None)
        ]
        if parts:
            yield f"{TOKENIZER} differs from the source's in {', '.join(parts)}"
        return
    for name in OTHER_VOCABULARIES:
        if (source / name).is_file() and (variant / name).is_file():
            if digest_file(source / name) != digest_file(variant / name):
                raise _other_tokenizer(variant / name, "another vocabulary")
            return
    raise _other_tokenizer(variant, "no tokenizer file that the source has too")


def _other_tokenizer(where: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"the variant's tokenizer is not the source's: it has {what}",
        where=str(where),
        hint="copy the source's tokenizer files into a copy of the variant, if it was made with "
        "them; " + HINT,
    )


def _model(tokenizer: dict[str, Any]) -> dict[str, Any]:
    model = tokenizer.get("model")
    return model if isinstance(model, dict) else {}


def _vocabulary(tokenizer: dict[str, Any]) -> Any:
    return _model(tokenizer).get("vocab")


def _merges(tokenizer: dict[str, Any]) -> list[Any]:
    """Return the merges in one form: older versions write 'a b' for ['a', 'b']."""
    merges = _model(tokenizer).get("merges")
    return [
        each.split(" ") if isinstance(each, str) else each
        for each in (merges if isinstance(merges, list) else [])
    ]


def _added_tokens(tokenizer: dict[str, Any]) -> Any:
    tokens = tokenizer.get("added_tokens")
    found = [each for each in tokens if isinstance(each, dict)] if isinstance(tokens, list) else []
    return sorted(str([each.get(key) for key in ("id", "content", "special")]) for each in found)
