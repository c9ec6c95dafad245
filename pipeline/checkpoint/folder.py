"""Checkpoint folders with safetensors, config and tokenizer files: completeness and digest.

The digest covers names and contents of every file that can change the model's answers, and not its
location.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import Field

from pipeline.checkpoint import gguf
from pipeline.checkpoint.reference import CheckpointReference, Kind, parse_reference
from pipeline.checkpoint.safetensors_header import TensorEntry
from pipeline.checkpoint.source_format import QUANTIZER_FILE, source_format
from pipeline.checkpoint.weight_files import (
    INDEX,
    checkpoint_names,
    read_headers,
    read_json,
    weight_files,
)
from pipeline.core.digest import digest_json
from pipeline.core.errors import CheckpointError
from pipeline.core.events import NullProgress, Progress
from pipeline.core.file_digests import FileDigests
from pipeline.core.record import Record
from pipeline.core.untrusted import MEBIBYTE

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
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
    "*.tiktoken",
)
# Globs of files that quantization must copy unchanged.
AUXILIARY_FILES = (
    "*.model",
    "*.tiktoken",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
# Files other than weights that can change the model's answers; all at the top level.
SMALL_FILES = (
    *AUXILIARY_FILES,
    "config.json",
    QUANTIZER_FILE,
    INDEX,
    "*.py",
)

# The name most models use, then older ones' (GPT-2, MPT, DBRX).
MAX_CONTEXT = 10**10  # tokens; a larger value is an error or an attack
CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",  # Kimi Linear
)
CODE_KEY = "auto_map"  # refers to Python classes in the checkpoint
TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}

MAX_SMALL_BYTES = 512 * MEBIBYTE  # limit of a file without weights
MAX_NAME_CHARACTERS = 200  # of architecture and model type

_SHA256 = re.compile(r"[0-9a-f]{64}")


class CheckpointFile(Record):
    """A file that is part of the digest."""

    name: str = Field(description="file name within the checkpoint's folder")
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

    Headers are read before files are hashed, so most faults appear within a second.

    Args:
        path: the folder; for kind "hub" a snapshot in the Hub's cache, whose links are checked
            against
        the Hub's digests.
        is_head: it is a draft model that uses another model's tokenizer and may have none.
    """
    path = path.expanduser().absolute()
    config = read_config(path)
    architecture = _text("architectures", _first(config.get("architectures")), path)
    model_type = _text("model_type", config.get("model_type"), path)
    weights = weight_files(path)
    small = [path / name for name in checkpoint_names(path) if matches(name, SMALL_FILES)]
    has_tokenizer = any(matches(file.name, TOKENIZER_VOCABULARIES) for file in small)
    if not has_tokenizer and not is_head:
        raise CheckpointError(
            "the checkpoint has no tokenizer",
            where=str(path),
            hint=f"add the model's tokenizer files, one of {', '.join(TOKENIZER_VOCABULARIES)}",
        )
    files = sorted({*weights, *small})
    for file in files:
        _check_inside(file, path, kind)
    for file in small:
        if file.stat().st_size > MAX_SMALL_BYTES:
            raise CheckpointError(
                f"the file has {file.stat().st_size:,} bytes, too many for a checkpoint",
                where=str(file),
                hint="download it again",
            )
    tensors = [tensor for h in read_headers(path).values() for tensor in h.tensors.values()]
    parameters = sum(tensor.elements for tensor in tensors)
    if not parameters:
        raise CheckpointError("the weights are empty", where=str(weights[0]))
    hashed = _hash_all(files, kind, digests, progress or NullProgress())
    quantizer = path / QUANTIZER_FILE
    form = source_format(config, read_json(quantizer) if quantizer in small else None)
    return Checkpoint(
        ref=ref,
        kind=kind,
        revision=revision,
        path=path,
        digest=digest_json([[file.name, file.sha256] for file in hashed]),
        files=hashed,
        architecture=architecture,
        model_type=model_type,
        dtype=_main_dtype(tensors),
        parameters=parameters,
        weights_bytes=sum(file.stat().st_size for file in weights),
        max_position_embeddings=_check_context_length(config, path),
        quantized=form.label if form else "",
        needs_remote_code=_needs_remote_code(config, path),
    )


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a file name matches one of the globs."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_folder(path: Path) -> None:
    """Raise CheckpointError with a hint unless the path is a readable folder."""
    if path.is_file() and path.suffix == gguf.SUFFIX:
        raise gguf.gguf_error(str(path.parent), path.name, str(path))
    if path.is_file():
        raise CheckpointError(
            "a checkpoint must be a folder, this is a file",
            where=str(path),
            hint=f"use its folder: {path.parent}",
        )
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise CheckpointError("the folder is not readable", where=str(path))
    if not path.is_dir():
        raise CheckpointError(
            "the folder does not exist", where=str(path), hint="check the path for a typo"
        )


def read_config(path: Path) -> dict[str, Any]:
    """Return config.json; common wrong folders get a specific hint."""
    check_folder(path)
    if not (path / "config.json").exists():
        if files := sorted(path.glob(f"*{gguf.SUFFIX}")):
            raise gguf.gguf_error(str(path), files[0].name, str(path))
        adapter = (path / "adapter_config.json").exists()
        raise CheckpointError(
            "the folder has an adapter instead of a complete model"
            if adapter
            else "the folder has no config.json",
            where=str(path),
            hint="merge it into its base model first: peft's merge_and_unload(), save_pretrained()"
            if adapter
            else "use the folder with config.json, the weights and the tokenizer",
        )
    return read_json(path / "config.json")


def _text(key: str, value: Any, path: Path) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARACTERS:
        raise CheckpointError(
            f"config.json lacks the model's {key}",
            where=f"{path / 'config.json'}, key {key}",
            hint="save the checkpoint again with transformers' save_pretrained()",
        )
    return value


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def _levels(config: dict[str, Any]) -> list[dict[str, Any]]:
    inner = config.get("text_config")
    return [config, inner] if isinstance(inner, dict) else [config]


def needs_own_code(config: dict[str, Any]) -> bool:
    """Return whether config.json names Python code of the checkpoint for its model."""
    return bool(config.get(CODE_KEY))


def context_length(config: dict[str, Any]) -> int | None:
    """Return the model's tokens of context; None if config.json lacks it."""
    for level in _levels(config):
        for key in CONTEXT_KEYS:
            if type(level.get(key)) is int and 0 < level[key] <= MAX_CONTEXT:
                return int(level[key])
    return None


def _check_context_length(config: dict[str, Any], path: Path) -> int:
    if (found := context_length(config)) is not None:
        return found
    raise CheckpointError(
        "config.json lacks the model's context length",
        where=f"{path / 'config.json'}, key {CONTEXT_KEYS[0]}",
        hint=f"add the key {CONTEXT_KEYS[0]} with the length that the model was trained for",
    )


def _needs_remote_code(config: dict[str, Any], path: Path) -> bool:
    tokenizer = path / "tokenizer_config.json"
    return needs_own_code(config) or (
        tokenizer.exists() and bool(read_json(tokenizer).get(CODE_KEY))
    )


def _check_inside(file: Path, folder: Path, kind: Kind) -> None:
    """Check that links stay in the folder or, for the Hub's cache, its blob store."""
    target = Path(os.path.realpath(file))  # unlike resolve(), accepts link loops
    allowed = [folder.resolve()]
    if kind == "hub" and folder.parent.name == "snapshots":
        # CACHE/models--org--name/snapshots/COMMIT; contents are in the repository's blobs folder,
        # and with huggingface_hub 2 in a shared one.
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


def _hash_all(
    files: list[Path], kind: Kind, digests: FileDigests, progress: Progress
) -> tuple[CheckpointFile, ...]:
    hashed = []
    for file, sha256 in zip(files, digests.digest_all(files, progress), strict=True):
        _check_hub_digest(file, kind, sha256)
        hashed.append(CheckpointFile(name=file.name, size=file.stat().st_size, sha256=sha256))
    return tuple(hashed)


def _check_hub_digest(file: Path, kind: Kind, sha256: str) -> None:
    if kind != "hub" or not file.is_symlink():
        return
    expected = file.readlink().name
    if _SHA256.fullmatch(expected) and expected != sha256:
        raise CheckpointError(
            f"the file is damaged: its sha256 is {sha256}, the Hub's is {expected}",
            where=str(file.resolve()),
            hint="delete it and run the command again, to download it again",
        )


def _main_dtype(tensors: list[TensorEntry]) -> str:
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.size
    name = sizes.most_common(1)[0][0]
    return TORCH_NAMES.get(name, name.lower())
