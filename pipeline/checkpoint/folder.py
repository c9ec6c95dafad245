"""A checkpoint: a folder of safetensors, config and tokenizer files; is it whole, and its digest.

The digest is over the names and contents of every file that can change what the model
answers, so the same content in another place has the same digest.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import Field

from pipeline.checkpoint import gguf
from pipeline.checkpoint.reference import CheckpointReference, Kind, parse_reference
from pipeline.checkpoint.safetensors_header import TensorEntry
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
from pipeline.core.untrusted.file import MEBIBYTE

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
# What quantization must leave byte for byte as it is, where the checkpoint has it; shell patterns.
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
QUANTIZER_FILE = "hf_quant_config.json"  # NVIDIA's ModelOpt writes it beside quantized weights
# Every file but the weights that can change what the model answers; all lie at the top.
SMALL_FILES = (
    *AUXILIARY_FILES,
    "config.json",
    QUANTIZER_FILE,
    INDEX,
    "*.py",
)

# The name most models use, then older ones' (GPT-2, MPT, DBRX).
MAX_CONTEXT = 10**10  # tokens; more is a slip or a trap
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
QUANTIZATION_KEYS = ("quantization_config", "compression_config")
CODE_KEY = "auto_map"  # names Python classes that come with the checkpoint
TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}

MAX_SMALL_BYTES = 512 * MEBIBYTE  # of a file that holds no weights; the largest seen has 40
MAX_NAME_CHARACTERS = 200  # of an architecture and a model type

_SHA256 = re.compile(r"[0-9a-f]{64}")


class CheckpointFile(Record):
    """One file that counts."""

    name: str = Field(description="file name within the checkpoint's folder")
    size: int = Field(description="bytes")
    sha256: str = Field(description="of the content, in hexadecimal")


class Checkpoint(Record):
    """A checkpoint that was looked at and found whole."""

    ref: str = Field(description="as the user named it")
    kind: Kind = Field(description="where it comes from")
    revision: str | None = Field(description="commit on the Hub; None for other kinds")
    path: Path = Field(description="folder it lies in on this machine; not part of the digest")
    digest: str = Field(description="sha256 over the names and digests of its files")
    files: tuple[CheckpointFile, ...] = Field(description="sorted by name")
    architecture: str = Field(description="first of config.json's architectures")
    model_type: str = Field(description="from config.json")
    dtype: str = Field(description="torch's name of the type that most weight bytes have")
    parameters: int = Field(description="elements of all tensors; tied ones are stored once")
    weights_bytes: int = Field(description="size of all weight files together")
    max_position_embeddings: int = Field(description="tokens of context, from config.json")
    quantized: bool = Field(description="its config says that it is quantized already")
    needs_remote_code: bool = Field(description="its config names Python code of its own")


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
    """Look whether the checkpoint in `path` is whole, and digest it.

    Headers are read before any file is hashed, so that most faults show within a second.

    Args:
        path: the folder; for kind "hub" a snapshot folder of the Hub's cache, whose files are
            links into that cache and are checked against the digests the Hub gave.
        is_head: it drafts for another model, whose tokenizer it uses, and may have none.
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
                f"the file has {file.stat().st_size:,} bytes; no checkpoint's is that large",
                where=str(file),
                hint="download it again",
            )
    tensors = [tensor for h in read_headers(path).values() for tensor in h.tensors.values()]
    parameters = sum(tensor.elements for tensor in tensors)
    if not parameters:
        raise CheckpointError("the weights are empty", where=str(weights[0]))
    hashed = _hash_all(files, kind, digests, progress or NullProgress())
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
        max_position_embeddings=_context_length(config, path),
        quantized=is_marked_quantized(config, [file.name for file in small]),
        needs_remote_code=_needs_remote_code(config, path),
    )


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a file name fits one of the shell patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_folder(path: Path) -> None:
    """Raise CheckpointError, with its hint, for what is no folder that can be read."""
    if path.is_file() and path.suffix == gguf.SUFFIX:
        raise gguf.gguf_error(str(path.parent), path.name, str(path))
    if path.is_file():
        raise CheckpointError(
            "a checkpoint is a folder, this is a file",
            where=str(path),
            hint=f"name its folder: {path.parent}",
        )
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise CheckpointError("the folder may not be read", where=str(path))
    if not path.is_dir():
        raise CheckpointError(
            "there is no such folder", where=str(path), hint="check the path for a typo"
        )


def read_config(path: Path) -> dict[str, Any]:
    """config.json, with a hint for the folders that people name by mistake."""
    check_folder(path)
    if not (path / "config.json").exists():
        if files := sorted(path.glob(f"*{gguf.SUFFIX}")):
            raise gguf.gguf_error(str(path), files[0].name, str(path))
        adapter = (path / "adapter_config.json").exists()
        raise CheckpointError(
            "the folder holds an adapter, not a whole model"
            if adapter
            else "the folder has no config.json",
            where=str(path),
            hint="merge it into its base model first: peft's merge_and_unload(), save_pretrained()"
            if adapter
            else "name the folder that holds config.json, the weights and the tokenizer",
        )
    return read_json(path / "config.json")


def _text(key: str, value: Any, path: Path) -> str:
    """A text that config.json must have."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARACTERS:
        raise CheckpointError(
            f"config.json does not say the model's {key}",
            where=f"{path / 'config.json'}, key {key}",
            hint="save the checkpoint again with transformers' save_pretrained()",
        )
    return value


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def _levels(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Multimodal configs keep the language model's settings one level down."""
    inner = config.get("text_config")
    return [config, inner] if isinstance(inner, dict) else [config]


def is_marked_quantized(config: dict[str, Any], names: Collection[str]) -> bool:
    """Whether config.json or the names of the files beside it say that it is quantized."""
    return QUANTIZER_FILE in names or any(
        level.get(key) for level in _levels(config) for key in QUANTIZATION_KEYS
    )


def _context_length(config: dict[str, Any], path: Path) -> int:
    for level in _levels(config):
        for key in CONTEXT_KEYS:
            if type(level.get(key)) is int and 0 < level[key] <= MAX_CONTEXT:
                return int(level[key])
    raise CheckpointError(
        "config.json does not say how many tokens of context the model has",
        where=f"{path / 'config.json'}, key {CONTEXT_KEYS[0]}",
        hint=f"add the key {CONTEXT_KEYS[0]} with the length the model was trained for",
    )


def _needs_remote_code(config: dict[str, Any], path: Path) -> bool:
    """Model or tokenizer are classes of the checkpoint's own (or another repository's) code."""
    tokenizer = path / "tokenizer_config.json"
    return CODE_KEY in config or (tokenizer.exists() and CODE_KEY in read_json(tokenizer))


def _check_inside(file: Path, folder: Path, kind: Kind) -> None:
    """A link may point within the folder; on the Hub's cache, to its store of contents too."""
    target = Path(os.path.realpath(file))  # of links in a circle too, which resolve() raises at
    allowed = [folder.resolve()]
    if kind == "hub" and folder.parent.name == "snapshots":
        # CACHE/models--org--name/snapshots/COMMIT; contents lie in the repository's own blobs
        # folder, and since huggingface_hub 2 in one that all repositories share.
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
    """Large files of the Hub's cache are named by the sha256 that the Hub gave for them."""
    if kind != "hub" or not file.is_symlink():
        return
    promised = file.readlink().name
    if _SHA256.fullmatch(promised) and promised != sha256:
        raise CheckpointError(
            f"the file is damaged: its sha256 is {sha256}, the Hub's is {promised}",
            where=str(file.resolve()),
            hint="delete it and run the command again, to download it again",
        )


def _main_dtype(tensors: list[TensorEntry]) -> str:
    """The type that most bytes have, by torch's name where it has another."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.size
    name = sizes.most_common(1)[0][0]
    return TORCH_NAMES.get(name, name.lower())
