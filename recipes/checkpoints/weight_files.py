"""Weight files of a checkpoint, and their index."""

from __future__ import annotations

import re
import stat
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from prepare.digest import digest_file, digest_json
from prepare.errors import CheckpointError, EvidenceError, raise_as
from prepare.untrusted import (
    MAX_JSON_BYTES,
    is_plain_name,
    list_names,
    parse_json,
    read_regular,
)
from recipes.checkpoints.safetensors_header import SafetensorsHeader, read_header

INDEX = "model.safetensors.index.json"
# Mistral's repositories contain all weights again under this name, in another format.
IGNORED_WEIGHTS = "consolidated*.safetensors"
MAX_SHARDS = 10_000
_SHARD = re.compile(r".*-\d{5}-of-\d{5}\.safetensors")


def weight_files(folder: Path) -> list[Path]:
    """Return the index's sorted weight files, or all safetensors.

    CheckpointError: there are none, shards have no index, one is missing, or the index is damaged
    or leaves the folder.
    """
    index = folder / INDEX
    return list_weights(folder, read_index(index) if index.exists() else None)


def list_weights(folder: Path, weight_map: Mapping[str, str] | None) -> list[Path]:
    """Do as :func:`weight_files`, with the index's weight_map or None."""
    index = folder / INDEX
    names = checkpoint_names(folder)
    if weight_map is not None:
        shards = sorted({folder / name for name in weight_map.values()})
        missing = [shard.name for shard in shards if not shard.exists()]
        check_no_shard_is_missing(missing, len(shards), str(index))
        single = folder / "model.safetensors"
        if single.exists() and single not in shards:
            raise CheckpointError(
                "there are two sets of weights: libraries differ in which one they load",
                where=f"{single} and {index}",
                hint="delete the one that is out of date",
            )
        return shards
    files = [folder / name for name in names if are_weights(name)]
    if not files:
        raise CheckpointError(
            "the folder has no .safetensors file", where=str(folder), hint=hint_on_weights(names)
        )
    if any(_SHARD.fullmatch(file.name) for file in files):
        raise CheckpointError(
            "the weights are in several files, and their index is missing",
            where=str(index),
            hint="download it from the source of the weights",
        )
    return files


PICKLES = frozenset({".bin", ".pt", ".pth"})
GGUF = ".gguf"


def check_no_shard_is_missing(missing: list[str], total: int, where: str) -> None:
    """Raise CheckpointError for missing weight files."""
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {total} weight files are missing: {', '.join(missing[:3])}",
            where=where,
            hint="download them, or use another revision; the index lists their names",
        )


def hint_on_weights(names: Iterable[str]) -> str:
    """Return what to use instead of such files."""
    suffixes = {Path(name).suffix for name in names}
    if suffixes & PICKLES:
        return (
            "pickled weights are not loaded, because a pickle can run any code: use a revision "
            "with safetensors; if you trust them, convert them with transformers: "
            "model.save_pretrained(FOLDER)"
        )
    if GGUF in suffixes:
        return "GGUF weights are quantized already: use the 16-bit checkpoint that they came from"
    return "use the folder with config.json, the weights and the tokenizer, or such a repository"


def are_other_weights(name: str) -> bool:
    """Return whether this is a weight file that is not supported."""
    return Path(name).suffix in {*PICKLES, GGUF}


def are_weights(name: str) -> bool:
    """Return whether this is a supported weight file."""
    return fnmatchcase(name, "*.safetensors") and not fnmatchcase(name, IGNORED_WEIGHTS)


def read_headers(folder: Path) -> dict[Path, SafetensorsHeader]:
    """Return weight files' headers, checked against the index."""
    index = folder / INDEX
    return headers_of(folder, read_index(index) if index.exists() else None)


def headers_of(folder: Path, weight_map: Mapping[str, str] | None) -> dict[Path, SafetensorsHeader]:
    """Do as :func:`read_headers`, with the index's weight_map or None."""
    headers = {file: read_header(file) for file in list_weights(folder, weight_map)}
    for tensor, name in (weight_map or {}).items():
        if tensor not in headers[folder / name].tensors:
            raise CheckpointError(
                f"the index assigns the tensor '{tensor}' to '{name}', which lacks it",
                where=str(folder / INDEX),
                hint="download index and weights of one revision again",
            )
    return headers


def weights_digest(folder: Path, digest_of: Callable[[Path], str]) -> str:
    """Return the weight files' digest, names included."""
    return digest_json([[file.name, digest_of(file)] for file in weight_files(folder)])


def read_index(index: Path) -> dict[str, str]:
    """Return the index's weight_map: file by tensor name."""
    return weight_map_of(read_json(index), index)


def weight_map_of(content: Mapping[str, Any], index: Path) -> dict[str, str]:
    """Return the weight_map of an index's content."""
    weight_map = content.get("weight_map")
    fault = ""
    hint = "download it again"
    if not isinstance(weight_map, dict) or not weight_map:
        weight_map = {}
        fault = "the index has no valid weight_map"
    names = {name if isinstance(name, str) else "" for name in weight_map.values()}
    wrong = [name for name in names if not is_plain_name(name) or not name.endswith(".safetensors")]
    if len(names) > MAX_SHARDS:
        fault = f"the index has {len(names):,} files; the limit is {MAX_SHARDS:,}"
    elif wrong:
        fault = f"the index names {wrong[0][:80]!r}, which is not a .safetensors file next to it"
        hint = "do not use this checkpoint unless you trust its author"
    if fault:
        raise CheckpointError(fault, where=f"{index}, key weight_map", hint=hint)
    return weight_map


def checkpoint_names(folder: Path) -> list[str]:
    """Return the sorted names in a checkpoint's folder."""
    with raise_as(
        CheckpointError,
        "the folder cannot be read",
        folder,
        "use a folder with the weights and few other files",
    ):
        return list_names(folder)


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; infinite numbers are allowed."""
    with raise_as(CheckpointError, "the file cannot be read", path):
        content = read_regular(path, MAX_JSON_BYTES)
    return parse_object(content, path)


def parse_object(content: bytes, path: Path) -> dict[str, Any]:
    """Do as :func:`read_json`, with the file's content."""
    if content.startswith(BOM_UTF8):
        raise CheckpointError(
            "the file begins with a byte order mark (BOM), which transformers does not read",
            where=str(path),
            hint=f"save it as UTF-8 without a BOM: sed -i '1s/^\\xEF\\xBB\\xBF//' {path}",
        )
    with raise_as(
        CheckpointError, "the file is not valid JSON", path, "download it again", errors=ValueError
    ):
        value = parse_json(content, finite=False)
    if not isinstance(value, dict):
        raise CheckpointError(
            "the file has no JSON object", where=str(path), hint="download it again"
        )
    return value


BUNDLE = "prepare-evidence"
ARCHIVE = f"{BUNDLE}/stages.tar.gz"
CARD = "README.md"
RESULTS = ".eval_results/prepare.yaml"
SIGNATURE = "model.sig"
# A signature, and the file that the Hub adds to every repository. Any other unlisted file, such as
# one in `.git/hooks`, is refused.
ADDED_LATER = (SIGNATURE, ".gitattributes")


def plain_files(folder: Path, leave_out: tuple[str, ...] = ()) -> Iterator[tuple[str, Path]]:
    """Yield relative path and file below the folder, sorted.

    EvidenceError: a link or device.
    """
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder).as_posix()
        mode = file.lstat().st_mode
        if any(_is_part_of(path, mode, pattern) for pattern in leave_out):
            continue
        if stat.S_ISREG(mode):
            yield path, file
        elif not stat.S_ISDIR(mode):
            raise EvidenceError(
                "there is something that is neither a file nor a folder",
                where=str(file),
                hint="replace links by the files; the Hub's cache has links, `hf download "
                "--local-dir` makes files",
            )


def _is_part_of(path: str, mode: int, left_out: str) -> bool:
    if left_out == BUNDLE:
        return path == BUNDLE or path.startswith(f"{BUNDLE}/")
    # A folder of that name could contain code.
    return path == left_out and stat.S_ISREG(mode)


def digest_of_other_files(folder: Path, added: tuple[str, ...] = ADDED_LATER) -> str:
    """Digest all files except weights and those `added` later, names included.

    CheckpointError: there are no weights. EvidenceError: a link or device.
    """
    weights = set(weight_files(folder))
    return digest_json(
        [
            [path, digest_file(file)]
            for path, file in plain_files(folder, added)
            if file not in weights
        ]
    )


def digest_auxiliary_files(folder: Path) -> str:
    """Digest auxiliary files; raises as `digest_of_other_files`."""
    return digest_of_other_files(folder, (BUNDLE, CARD, RESULTS, *ADDED_LATER))
