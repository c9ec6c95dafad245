"""A checkpoint on the Hub, without its weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from prepare.errors import CheckpointError
from recipes.checkpoints.chat_template import read_generation
from recipes.checkpoints.checkpoint import Checkpoint, read_folder
from recipes.checkpoints.folder import CONFIG
from recipes.checkpoints.hub import check_has_safetensors, explain_hub_errors, file_sizes, query_hub
from recipes.checkpoints.safetensors_header import TensorEntry, check_tensor
from recipes.checkpoints.small_files import SmallFiles
from recipes.checkpoints.source_format import QUANTIZER_FILE
from recipes.checkpoints.weight_files import (
    INDEX,
    are_weights,
    check_no_shard_is_missing,
    weight_map_of,
)

CONNECTIONS = 8


def read_hub(repo_id: str, revision: str | None) -> Checkpoint:
    """Read config.json, index and headers from the Hub, or its cache.

    HubError: as :func:`recipes.checkpoints.hub.download`. CheckpointError: a file is damaged.
    """
    from huggingface_hub import snapshot_download

    name = f"{repo_id}@{revision}" if revision else repo_id
    with explain_hub_errors(repo_id, revision):
        info = query_hub(repo_id, revision)
        if info is None:
            folder = Path(snapshot_download(repo_id, revision=revision, local_files_only=True))
            return replace(read_folder(folder, name, "hub"), revision=folder.name)
        sizes = file_sizes(info)
        check_has_safetensors(repo_id, sizes)

        small = SmallFiles(sizes, lambda file: _fetch(repo_id, info.sha, file))
        config = small.json(CONFIG)
        files = sorted(filter(are_weights, sizes))
        index = None
        if INDEX in sizes:
            index = small.json(INDEX)
            files = sorted(set(weight_map_of(index, Path(name, INDEX)).values()))
        missing = [file for file in files if file not in sizes]
        check_no_shard_is_missing(missing, len(files), repo_id)
        return Checkpoint(
            ref=name,
            where=f"{name}/{CONFIG}",
            config=config,
            tensors=_headers(repo_id, files, info.sha),
            weights_bytes=sum(sizes[file] for file in files),
            largest_file_bytes=max(sizes[file] for file in files),
            weights=tuple(files),
            kind="hub",
            revision=info.sha,
            index=index,
            quantizer=small.json(QUANTIZER_FILE) if QUANTIZER_FILE in small else None,
            generation=read_generation(name, small),
            small=small,
        )


def _fetch(repo_id: str, commit: str | None, file: str) -> Path:
    """Return a small file in the Hub's cache, or download it."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    with explain_hub_errors(repo_id, commit):
        try:
            return Path(hf_hub_download(repo_id, file, revision=commit))
        except EntryNotFoundError as error:
            raise CheckpointError(
                f"the repository has no {file}",
                where=repo_id,
                hint="use the repository of a language model's weights",
            ) from error


def _headers(repo_id: str, files: list[str], commit: str | None) -> dict[str, TensorEntry]:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import SafetensorsParsingError

    api = HfApi()

    def read(file: str) -> dict[str, TensorEntry]:
        where = Path(repo_id) / file
        try:
            header = api.parse_safetensors_file_metadata(repo_id, file, revision=commit)
        except SafetensorsParsingError as error:
            raise CheckpointError(f"the header is damaged: {error}", where=str(where)) from error
        entries = {
            name: {"dtype": t.dtype, "shape": [*t.shape], "data_offsets": [*t.data_offsets]}
            for name, t in header.tensors.items()
        }
        return {name: check_tensor(name, entry, where) for name, entry in entries.items()}

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return {
            name: tensor for headers in pool.map(read, files) for name, tensor in headers.items()
        }
