"""Names in a checkpoint's folder, and checks of its files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from prepare.errors import CheckpointError
from prepare.untrusted import MEBIBYTE
from recipes.checkpoints.small_files import TEMPLATES_FOLDER, SmallFiles
from recipes.checkpoints.source_format import QUANTIZER_FILE
from recipes.checkpoints.weight_files import INDEX, checkpoint_names, hint_on_weights

CONFIG = "config.json"
TOKENIZER_VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"),
    *("tekken.json", "*.tiktoken"),
)
NAMED_TEMPLATES = f"{TEMPLATES_FOLDER}/*.jinja"
# Globs of files that quantization must copy unchanged.
AUXILIARY_FILES = (
    NAMED_TEMPLATES,
    *("*.model", "*.tiktoken", "added_tokens.json", "chat_template.jinja", "chat_template.json"),
    *("generation_config.json", "merges.txt", "preprocessor_config.json"),
    *("processor_config.json", "special_tokens_map.json", "tekken.json", "tokenizer.json"),
    *("tokenizer_config.json", "vocab.json", "vocab.txt"),
)
# Other top-level files than weights that can change the model's answers.
SMALL_FILES = (*AUXILIARY_FILES, CONFIG, QUANTIZER_FILE, INDEX, "*.py")

MAX_CONTEXT = 10**10  # tokens; a larger value is an error or an attack
# The name most models use, then older ones' (GPT-2, MPT, DBRX), and Kimi Linear's.
CONTEXT_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "model_max_length",
)
CODE_KEY = "auto_map"  # refers to Python classes in the checkpoint
MAX_SMALL_BYTES = 512 * MEBIBYTE  # limit of a file without weights
MAX_NAME_CHARACTERS = 200  # of architecture and model type
_SHA256 = re.compile(r"[0-9a-f]{64}")


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether the name matches a glob."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_folder(path: Path) -> None:
    """Raise CheckpointError unless the folder is readable."""
    if path.is_file():
        hint = f"use its folder: {path.parent}"
        if path.suffix == ".gguf":
            hint = hint_on_weights([path.name])
        fault = f"a checkpoint must be a folder, this is a {path.suffix[1:].upper()} file"
    elif not path.is_dir():
        fault = "the folder does not exist"
        hint = "check the path for a typo"
    elif not os.access(path, os.R_OK | os.X_OK):
        fault = "the folder is not readable"
        hint = "give this user the right to read it"
    else:
        return
    raise CheckpointError(fault, where=str(path), hint=hint)


def read_config(path: Path, small: SmallFiles) -> dict[str, Any]:
    """Return config.json of a folder."""
    if (path / CONFIG).exists():
        return small.json(CONFIG)
    if (path / "adapter_config.json").exists():
        raise CheckpointError(
            "the folder has an adapter instead of a complete model",
            where=str(path),
            hint="merge it into its base model first: peft's merge_and_unload(), save_pretrained()",
        )
    raise CheckpointError(
        "the folder has no config.json",
        where=str(path),
        hint=hint_on_weights(checkpoint_names(path)),
    )


def needs_own_code(config: Mapping[str, Any]) -> bool:
    """Return whether a config names the checkpoint's own code."""
    return bool(config.get(CODE_KEY))


def context_length(config: Mapping[str, Any]) -> int | None:
    """Return the context in tokens; None if unknown."""
    inner = config.get("text_config")
    for level in (config, inner if isinstance(inner, dict) else {}):
        for key in CONTEXT_KEYS:
            if type(level.get(key)) is int and 0 < level[key] <= MAX_CONTEXT:
                return int(level[key])
    return None


def check_inside(file: Path, folder: Path) -> None:
    """Check that links stay in folder or blob store."""
    target = Path(os.path.realpath(file))  # unlike resolve(), accepts link loops
    allowed = [folder.resolve()]
    if is_snapshot(folder):
        # Blobs are in the repository's folder, and with huggingface_hub 2 in a shared one.
        repository = folder.parent.parent.resolve()
        allowed += [repository / "blobs", repository.parent / "blobs"]
    if not any(target.is_relative_to(place) for place in allowed):
        raise CheckpointError(
            f"the file is a link that leaves the checkpoint's folder, to {target}",
            where=str(file),
            hint="if that is intended, copy the folder with its contents: cp -rL FOLDER COPY",
        )
    if not target.is_file():
        raise CheckpointError(
            "the file is a broken link" if file.is_symlink() else "it is not a file",
            where=str(file),
            hint="download it again",
        )


def check_small(file: Path) -> None:
    """Raise CheckpointError for a file without weights that is too large."""
    size = file.stat().st_size
    if size > MAX_SMALL_BYTES:
        raise CheckpointError(
            f"the file has {size:,} bytes, too many for a checkpoint",
            where=str(file),
            hint="download it again",
        )


def is_snapshot(folder: Path) -> bool:
    """Return whether the folder is in the Hub's cache: models--ORG--NAME/snapshots/COMMIT."""
    repository = folder.parent.parent.name
    return folder.parent.name == "snapshots" and repository.startswith("models--")


def check_hub_digest(file: Path, folder: Path, sha256: str) -> None:
    """Raise CheckpointError unless a snapshot's file is what the Hub has."""
    if not is_snapshot(folder) or not file.is_symlink():
        return
    expected = file.readlink().name
    if _SHA256.fullmatch(expected) and expected != sha256:
        raise CheckpointError(
            f"the file is damaged: its sha256 is {sha256}, the Hub's is {expected}",
            where=str(file.resolve()),
            hint="delete it and run the command again, to download it again",
        )
