"""A checkpoint: what its files show, each read once, and its digest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from prepare.digest import FileDigests, digest_json
from prepare.errors import CheckpointError
from prepare.events import NullProgress, Progress
from prepare.record import Record
from recipes.checkpoints.chat_template import ModelGeneration, read_generation
from recipes.checkpoints.folder import (
    CONFIG,
    CONTEXT_KEYS,
    MAX_NAME_CHARACTERS,
    MAX_SMALL_BYTES,
    SMALL_FILES,
    TOKENIZER_VOCABULARIES,
    check_folder,
    check_hub_digest,
    check_inside,
    check_small,
    context_length,
    matches,
    needs_own_code,
    read_config,
)
from recipes.checkpoints.reference import Kind
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.checkpoints.small_files import SmallFiles, small_names
from recipes.checkpoints.source_format import QUANTIZER_FILE, SourceFormat, source_format
from recipes.checkpoints.tokenizer_file import (
    MAX_TOKENIZER_BYTES,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TokenizerFile,
    parse_tokenizer,
)
from recipes.checkpoints.weight_files import INDEX, headers_of, weight_map_of

TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


class CheckpointFile(Record):
    """A file that is part of the digest."""

    name: str = Field(description="path within the checkpoint's folder")
    size: int = Field(description="bytes")
    sha256: str = Field(description="of the content, in hexadecimal")


class CheckpointFolder(Record):
    """A hashed checkpoint on this machine, for the stages that read it."""

    path: Path
    names: tuple[str, ...] = Field(description="of the files in its digest")
    weights_bytes: int = Field(description="total size of the weight files")


@dataclass(frozen=True)
class Checkpoint:
    """Facts of a folder, or of a repository's commit on the Hub.

    `config`, `index` and `quantizer` are the content of config.json, of the weights' index and of
    hf_quant_config.json.
    """

    ref: str  # given by the user
    where: str  # of config.json, for messages
    config: dict[str, Any]
    tensors: Mapping[str, TensorEntry]  # by name, from all headers
    weights_bytes: int
    largest_file_bytes: int = 0
    weights: tuple[str, ...] = ()  # names of the weight files
    kind: Kind = "folder"
    revision: str | None = None  # commit on the Hub; None for other kinds
    here: Path | None = None  # its folder; None if it is not downloaded
    index: Mapping[str, Any] | None = None
    quantizer: Mapping[str, Any] | None = None
    generation: ModelGeneration = field(default_factory=ModelGeneration)
    small: SmallFiles = field(default_factory=lambda: SmallFiles((), Path))
    files: tuple[CheckpointFile, ...] = ()  # sorted by name; empty until they are hashed
    dequantized: Checkpoint | None = None  # made from it; recipes start there

    @property
    def architecture(self) -> str:
        """The first architecture of config.json, or "unknown"."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "unknown"

    @property
    def format(self) -> SourceFormat | None:
        """Format of released quantized weights, or None."""
        return source_format(self.config, self.quantizer)

    @property
    def quantized(self) -> str:
        """Numbers of quantized weights, such as FP8; '' for none."""
        return self.format.label if self.format else ""

    @property
    def weight_map(self) -> Mapping[str, str] | None:
        """File by tensor name, or None without an index."""
        return None if self.index is None else self.index["weight_map"]

    @cached_property
    def tokenizer(self) -> TokenizerFile | None:
        """The content of tokenizer.json, if there is one.

        CheckpointError: it is damaged.
        """
        if TOKENIZER not in self.small:
            return None
        return self.small.parsed(TOKENIZER, MAX_TOKENIZER_BYTES, parse_tokenizer)

    @property
    def code_file(self) -> str:
        """The name of a file that requires the checkpoint's own Python code, or ''."""
        if needs_own_code(self.config):
            return CONFIG
        in_small = TOKENIZER_CONFIG in self.small
        is_needed = in_small and needs_own_code(self.small.json(TOKENIZER_CONFIG))
        return TOKENIZER_CONFIG if is_needed else ""

    @property
    def recipe_source(self) -> Checkpoint:
        """The checkpoint that recipes start from."""
        return self.dequantized or self

    @property
    def path(self) -> Path:
        """The folder of a checkpoint that is on this machine."""
        assert self.here is not None, "it is read from the Hub, and not downloaded"
        return self.here

    @property
    def place(self) -> CheckpointFolder:
        """What stages need of a hashed checkpoint."""
        return CheckpointFolder(
            path=self.path,
            names=tuple(file.name for file in self.files),
            weights_bytes=self.weights_bytes,
        )

    def digest_of(self, name: str) -> str:
        """Return a small file's SHA-256."""
        for file in self.files:
            if file.name == name:
                return file.sha256
        return self.small.hash(name, MAX_SMALL_BYTES)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the names and digests of its files."""
        assert self.files, "it is not hashed yet"
        return digest_json([[file.name, file.sha256] for file in self.files])

    @cached_property
    def parameters(self) -> int:
        """Elements of all tensors; tied tensors count once."""
        return sum(tensor.elements for tensor in self.tensors.values())

    @property
    def dtype(self) -> str:
        """The type with the most weight bytes, as torch calls it."""
        sizes: Counter[str] = Counter()
        for tensor in self.tensors.values():
            sizes[tensor.dtype] += tensor.size
        name = sizes.most_common(1)[0][0]
        return TORCH_NAMES.get(name, name.lower())

    @property
    def max_position_embeddings(self) -> int:
        """Tokens of context; CheckpointError if config.json has none."""
        context = context_length(self.config)
        if context is None:
            raise lacks_key(CONTEXT_KEYS[0], self.where)
        return context

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of a hashed checkpoint as plain data."""
        return {
            "ref": self.ref,
            "kind": self.kind,
            "revision": self.revision,
            "path": str(self.path),
            "digest": self.digest,
            "architecture": self.architecture,
            "model_type": self.config["model_type"],
            "dtype": self.dtype,
            "parameters": self.parameters,
            "weights_bytes": self.weights_bytes,
            "max_position_embeddings": self.max_position_embeddings,
            "quantized": self.quantized,
            "needs_remote_code": bool(self.code_file),
            "dequantized": self.dequantized.to_dict() if self.dequantized else None,
        }


def read_folder(
    folder: Path,
    ref: str | None = None,
    kind: Kind = "folder",
    small: SmallFiles | None = None,
) -> Checkpoint:
    """Read config.json, headers and small files in a folder.

    `small` has those that are read already. CheckpointError: missing or damaged.
    """
    folder = folder.expanduser().absolute()
    check_folder(folder)
    small = small or SmallFiles.in_folder(folder)
    config = read_config(folder, small)
    place = folder / INDEX
    index = small.json(INDEX) if place.exists() else None
    weight_map = None if index is None else weight_map_of(index, place)
    headers = headers_of(folder, weight_map)
    sizes = [file.stat().st_size for file in headers]
    return Checkpoint(
        ref=ref or str(folder),
        where=str(folder / CONFIG),
        config=config,
        tensors={k: t for header in headers.values() for k, t in header.tensors.items()},
        weights_bytes=sum(sizes),
        largest_file_bytes=max(sizes),
        weights=tuple(file.name for file in headers),
        kind=kind,
        here=folder,
        index=index,
        quantizer=small.json(QUANTIZER_FILE) if QUANTIZER_FILE in small else None,
        generation=read_generation(str(folder), small),
        small=small,
    )


def hash_checkpoint(
    checkpoint: Checkpoint,
    digests: FileDigests,
    progress: Progress | None = None,
    *,
    is_head: bool = False,
) -> Checkpoint:
    """Check that the checkpoint is complete, and hash its files.

    In a snapshot of the Hub's cache, links must match the Hub's digests. A draft model (`is_head`)
    may have no tokenizer.
    """
    folder = checkpoint.path
    names = [name for name in small_names(folder) if matches(name, SMALL_FILES)]
    check_complete(checkpoint, names, is_head=is_head)
    files = sorted({folder / name for name in (*names, *checkpoint.weights)})
    for file in files:
        check_inside(file, folder)
        if file.name not in checkpoint.weights:
            check_small(file)
    if not checkpoint.parameters:
        raise CheckpointError("the weights are empty", where=str(folder / checkpoint.weights[0]))
    unread = [file for file in files if checkpoint.small.digest(_name(file, folder)) is None]
    fresh = digests.digest_all(unread, progress or NullProgress())
    hashed = []
    for file in files:
        name = _name(file, folder)
        sha256 = checkpoint.small.digest(name) or next(fresh)
        check_hub_digest(file, folder, sha256)
        hashed.append(CheckpointFile(name=name, size=file.stat().st_size, sha256=sha256))
    return replace(checkpoint, files=tuple(hashed))


def inspect_folder(
    folder: Path, digests: FileDigests, *, ref: str | None = None, is_head: bool = False
) -> Checkpoint:
    """Return a folder's hashed checkpoint."""
    return hash_checkpoint(read_folder(folder, ref), digests, is_head=is_head)


def check_complete(checkpoint: Checkpoint, names: Iterable[str], *, is_head: bool = False) -> None:
    """Raise CheckpointError for a missing key of config.json, or a missing tokenizer."""
    config = checkpoint.config
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    for key, value in (("architectures", first), ("model_type", config.get("model_type"))):
        if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARACTERS:
            raise lacks_key(key, checkpoint.where)
    if context_length(config) is None:
        raise lacks_key(CONTEXT_KEYS[0], checkpoint.where)
    if not is_head and not any(matches(name, TOKENIZER_VOCABULARIES) for name in names):
        raise CheckpointError(
            "the checkpoint has no tokenizer",
            where=str(Path(checkpoint.where).parent),
            hint=f"add the model's tokenizer files, one of {', '.join(TOKENIZER_VOCABULARIES)}",
        )


def lacks_key(key: str, where: str) -> CheckpointError:
    """Return the error of a key that config.json lacks."""
    return CheckpointError(
        f"config.json lacks the model's {key}",
        where=f"{where}, key {key}",
        hint="save the checkpoint again with transformers' save_pretrained(), or add the key",
    )


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix()
