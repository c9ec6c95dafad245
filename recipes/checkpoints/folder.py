"""Checkpoint folders: completeness and digest."""

from __future__ import annotations

import os
import re
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import Field

from prepare.digest import FileDigests, digest_json
from prepare.errors import CheckpointError
from prepare.events import NullProgress, Progress
from prepare.record import Record
from prepare.untrusted import MEBIBYTE
from recipes.checkpoints.reference import CheckpointReference, Kind, parse_reference
from recipes.checkpoints.source_format import QUANTIZER_FILE, source_format
from recipes.checkpoints.weight_files import (
    INDEX,
    checkpoint_names,
    hint_on_weights,
    read_headers,
    read_json,
    weight_files,
)

__all__ = [
    "AUXILIARY_FILES",
    "Checkpoint",
    "CheckpointFile",
    "CheckpointReference",
    "Kind",
    "check_folder",
    "inspect_folder",
    "parse_reference",
]

TOKENIZER_VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"),
    *("tekken.json", "*.tiktoken"),
)
# Named chat templates besides the default one, as transformers saves them.
TEMPLATES_FOLDER = "additional_chat_templates"
# Globs of files that quantization must copy unchanged.
AUXILIARY_FILES = (
    f"{TEMPLATES_FOLDER}/*.jinja",
    *("*.model", "*.tiktoken", "added_tokens.json", "chat_template.jinja", "chat_template.json"),
    *("generation_config.json", "merges.txt", "preprocessor_config.json"),
    *("processor_config.json", "special_tokens_map.json", "tekken.json", "tokenizer.json"),
    *("tokenizer_config.json", "vocab.json", "vocab.txt"),
)
# Other top-level files than weights that can change the model's answers.
SMALL_FILES = (*AUXILIARY_FILES, "config.json", QUANTIZER_FILE, INDEX, "*.py")

MAX_CONTEXT = 10**10  # tokens; a larger value is an error or an attack
# The name most models use, then older ones' (GPT-2, MPT, DBRX), and Kimi Linear's.
CONTEXT_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "model_max_length",
)
CODE_KEY = "auto_map"  # refers to Python classes in the checkpoint
TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
MAX_SMALL_BYTES = 512 * MEBIBYTE  # limit of a file without weights
MAX_NAME_CHARACTERS = 200  # of architecture and model type
_SHA256 = re.compile(r"[0-9a-f]{64}")


class CheckpointFile(Record):
    """A file that is part of the digest."""

    name: str = Field(description="path within the checkpoint's folder")
    size: int = Field(description="bytes")
    sha256: str = Field(description="of the content, in hexadecimal")


class Checkpoint(Record):
    """A complete checkpoint."""

    ref: str = Field(description="reference given by the user")
    kind: Kind = Field(description="kind of reference")
    revision: str | None = Field(description="commit on the Hub; None for other kinds")
    path: Path = Field(description="folder on this machine; not part of the digest")
    digest: str = Field(description="sha256 over the names and digests of its files")
    files: tuple[CheckpointFile, ...] = Field(description="sorted by name")
    architecture: str = Field(description="first architecture in config.json")
    model_type: str = Field(description="from config.json")
    dtype: str = Field(description="torch's name of the type with the most weight bytes")
    parameters: int = Field(description="elements of all tensors; tied tensors count once")
    weights_bytes: int = Field(description="total size of the weight files")
    max_position_embeddings: int = Field(description="tokens of context, from config.json")
    quantized: str = Field("", description="numbers of quantized weights, such as FP8; '' for none")
    needs_remote_code: bool = Field(
        description="its config requires Python code from the checkpoint"
    )
    dequantized: Checkpoint | None = Field(
        None, description="its weights in 16 bits, from which recipes start if it is quantized"
    )

    @property
    def recipe_source(self) -> Checkpoint:
        """The checkpoint that recipes start from."""
        return self.dequantized or self


def inspect_folder(
    path: Path,
    *,
    ref: str,
    kind: Kind,
    revision: str | None,
    digests: FileDigests,
    progress: Progress | None = None,
    is_head: bool = False,
) -> Checkpoint:
    """Check that the checkpoint is complete, and compute its digest.

    Most faults appear within a second. In a snapshot of the Hub's cache, links must match the
    Hub's digests. A draft model (`is_head`) may have no tokenizer.
    """
    path = path.expanduser().absolute()
    config = read_config(path)
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    architecture = _text("architectures", first, path)
    model_type = _text("model_type", config.get("model_type"), path)
    context = context_length(config)
    if context is None:
        raise _lacking(CONTEXT_KEYS[0], path)
    weights = weight_files(path)
    small = {path / name for name in small_names(path) if matches(name, SMALL_FILES)}
    if not is_head and not any(matches(file.name, TOKENIZER_VOCABULARIES) for file in small):
        raise CheckpointError(
            "the checkpoint has no tokenizer",
            where=str(path),
            hint=f"add the model's tokenizer files, one of {', '.join(TOKENIZER_VOCABULARIES)}",
        )
    files = sorted({*weights, *small})
    for file in files:
        _check_inside(file, path)
        if file in small and file.stat().st_size > MAX_SMALL_BYTES:
            raise CheckpointError(
                f"the file has {file.stat().st_size:,} bytes, too many for a checkpoint",
                where=str(file),
                hint="download it again",
            )
    sizes: Counter[str] = Counter()
    parameters = 0
    for header in read_headers(path).values():
        for tensor in header.tensors.values():
            parameters += tensor.elements
            sizes[tensor.dtype] += tensor.size
    if not parameters:
        raise CheckpointError("the weights are empty", where=str(weights[0]))
    dtype = sizes.most_common(1)[0][0]
    hashed = []
    for file, sha256 in zip(
        files, digests.digest_all(files, progress or NullProgress()), strict=True
    ):
        _check_hub_digest(file, path, sha256)
        name = file.relative_to(path).as_posix()
        hashed.append(CheckpointFile(name=name, size=file.stat().st_size, sha256=sha256))
    quantizer = path / QUANTIZER_FILE
    tokenizer = path / "tokenizer_config.json"
    form = source_format(config, read_json(quantizer) if quantizer in small else None)
    return Checkpoint(
        ref=ref,
        kind=kind,
        revision=revision,
        path=path,
        digest=digest_json([[each.name, each.sha256] for each in hashed]),
        files=tuple(hashed),
        architecture=architecture,
        model_type=model_type,
        dtype=TORCH_NAMES.get(dtype, dtype.lower()),
        parameters=parameters,
        weights_bytes=sum(file.stat().st_size for file in weights),
        max_position_embeddings=context,
        quantized=form.label if form else "",
        needs_remote_code=needs_own_code(config)
        or (tokenizer in small and needs_own_code(read_json(tokenizer))),
    )


def small_names(folder: Path) -> list[str]:
    """Return the names in a checkpoint's folder, and in its folder of chat templates."""
    templates = folder / TEMPLATES_FOLDER
    inner = checkpoint_names(templates) if templates.is_dir() else []
    return [*checkpoint_names(folder), *(f"{TEMPLATES_FOLDER}/{name}" for name in inner)]


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


def read_config(path: Path) -> dict[str, Any]:
    """Return config.json of a folder."""
    check_folder(path)
    if (path / "config.json").exists():
        return read_json(path / "config.json")
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


def _text(key: str, value: Any, path: Path) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARACTERS:
        raise _lacking(key, path)
    return value


def _lacking(key: str, path: Path) -> CheckpointError:
    return CheckpointError(
        f"config.json lacks the model's {key}",
        where=f"{path / 'config.json'}, key {key}",
        hint="save the checkpoint again with transformers' save_pretrained(), or add the key",
    )


def needs_own_code(config: dict[str, Any]) -> bool:
    """Return whether a config names the checkpoint's own code."""
    return bool(config.get(CODE_KEY))


def context_length(config: dict[str, Any]) -> int | None:
    """Return the context in tokens; None if unknown."""
    inner = config.get("text_config")
    for level in (config, inner if isinstance(inner, dict) else {}):
        for key in CONTEXT_KEYS:
            if type(level.get(key)) is int and 0 < level[key] <= MAX_CONTEXT:
                return int(level[key])
    return None


def _check_inside(file: Path, folder: Path) -> None:
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


def is_snapshot(folder: Path) -> bool:
    """Return whether the folder is in the Hub's cache: models--ORG--NAME/snapshots/COMMIT."""
    repository = folder.parent.parent.name
    return folder.parent.name == "snapshots" and repository.startswith("models--")


def _check_hub_digest(file: Path, folder: Path, sha256: str) -> None:
    if not is_snapshot(folder) or not file.is_symlink():
        return
    expected = file.readlink().name
    if _SHA256.fullmatch(expected) and expected != sha256:
        raise CheckpointError(
            f"the file is damaged: its sha256 is {sha256}, the Hub's is {expected}",
            where=str(file.resolve()),
            hint="delete it and run the command again, to download it again",
        )
