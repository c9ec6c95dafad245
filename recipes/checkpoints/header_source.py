"""Sources of config.json and headers: a folder or the Hub."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prepare.errors import CheckpointError
from recipes.checkpoints.chat_template import (
    ModelGeneration,
    folder_generation,
    read_generation,
)
from recipes.checkpoints.folder import read_config
from recipes.checkpoints.hub import check_has_safetensors, explain_hub_errors, file_sizes, query_hub
from recipes.checkpoints.model_shape import (
    EXPERT_INNER,
    INNER,
    model_shape,
    read_positive_int,
    text_level,
)
from recipes.checkpoints.module_kind import is_tied
from recipes.checkpoints.safetensors_header import TensorEntry, check_tensor
from recipes.checkpoints.source_format import QUANTIZER_FILE, SourceFormat, source_format
from recipes.checkpoints.tokenizer_file import TOKENIZER
from recipes.checkpoints.weight_files import (
    INDEX,
    are_weights,
    check_no_shard_is_missing,
    checkpoint_names,
    read_headers,
    read_index,
    read_json,
)

CONNECTIONS = 8


@dataclass(frozen=True)
class HeaderSource:
    """Facts about a checkpoint without its weights."""

    name: str  # reference given by the user
    where: str  # for messages
    config: dict[str, Any]
    tensors: dict[str, TensorEntry]  # by name, from all headers
    weights_bytes: int
    largest_file_bytes: int = 0
    names: frozenset[str] = frozenset()  # of all files next to config.json
    generation: ModelGeneration = field(default_factory=ModelGeneration)
    quantizer: dict[str, Any] = field(default_factory=dict)  # hf_quant_config.json
    tokenizer: Path | None = None  # tokenizer.json

    @property
    def architecture(self) -> str:
        """The first architecture of config.json, or "unknown"."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "unknown"

    @property
    def format(self) -> SourceFormat | None:
        """Format of released quantized weights, or None."""
        return source_format(self.config, self.quantizer if QUANTIZER_FILE in self.names else None)


def read_folder(folder: Path, name: str | None = None) -> HeaderSource:
    """Read config.json and the headers in a folder."""
    config = read_config(folder)
    headers = read_headers(folder)
    quantizer = folder / QUANTIZER_FILE
    tokenizer = folder / TOKENIZER
    sizes = [file.stat().st_size for file in headers]
    return HeaderSource(
        name=name or str(folder),
        where=str(folder / "config.json"),
        config=config,
        tensors={k: t for header in headers.values() for k, t in header.tensors.items()},
        weights_bytes=sum(sizes),
        largest_file_bytes=max(sizes),
        names=frozenset(checkpoint_names(folder)),
        generation=folder_generation(folder),
        quantizer=read_json(quantizer) if quantizer.is_file() else {},
        tokenizer=tokenizer if tokenizer.is_file() else None,
    )


def read_hub(repo_id: str, revision: str | None) -> HeaderSource:
    """Read config.json, index and headers from the Hub, or its cache.

    HubError: as :func:`recipes.checkpoints.hub.download`. CheckpointError: a file is damaged.
    """
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    name = f"{repo_id}@{revision}" if revision else repo_id
    with explain_hub_errors(repo_id, revision):
        info = query_hub(repo_id, revision)
        if info is None:
            folder = Path(snapshot_download(repo_id, revision=revision, local_files_only=True))
            return read_folder(folder, name)
        sizes = file_sizes(info)
        check_has_safetensors(repo_id, sizes)

        def fetch(file: str) -> Path:
            try:
                return Path(hf_hub_download(repo_id, file, revision=info.sha))
            except EntryNotFoundError as error:
                raise CheckpointError(
                    f"the repository has no {file}",
                    where=repo_id,
                    hint="use the repository of a language model's weights",
                ) from error

        config = read_json(fetch("config.json"))
        files = sorted(filter(are_weights, sizes))
        if INDEX in sizes:
            files = sorted(set(read_index(fetch(INDEX)).values()))
        missing = [file for file in files if file not in sizes]
        check_no_shard_is_missing(missing, len(files), repo_id)
        return HeaderSource(
            name=name,
            where=f"{name}/config.json",
            config=config,
            tensors=_headers(repo_id, files, info.sha),
            weights_bytes=sum(sizes[file] for file in files),
            largest_file_bytes=max(sizes[file] for file in files),
            names=frozenset(sizes),
            generation=read_generation(name, sizes, fetch),
            quantizer=read_json(fetch(QUANTIZER_FILE)) if QUANTIZER_FILE in sizes else {},
            tokenizer=fetch(TOKENIZER) if TOKENIZER in sizes else None,
        )


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
        return {name: tensor for found in pool.map(read, files) for name, tensor in found.items()}


Shapes = dict[str, tuple[int, ...]]


def read_config_alone(folder: Path, name: str) -> HeaderSource:
    """Read config.json and make up the tensors.

    CheckpointError: it is missing or damaged, or lacks a number.
    """
    config = read_config(folder)
    where = str(folder / "config.json")
    level = text_level(config)
    shape = model_shape(config, where)
    hidden = shape.hidden

    def number(*names: str, default: int = 0) -> int:
        return read_positive_int(level, names, where) or default

    dense = number(*INNER, default=4 * hidden)
    inner = number(*EXPERT_INNER, default=dense)  # of one expert
    firsts = level.get("first_k_dense_replace", 0)
    shapes: Shapes = {
        "model.embed_tokens.weight": (shape.vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not is_tied(config):
        shapes["lm_head.weight"] = (shape.vocabulary, hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.{norm}_norm.weight": (hidden,) for norm in ("input", "post")}
        wide, narrow = (n * shape.head_width for n in (shape.heads, shape.key_value_heads))
        attention = {"q_proj": (wide, hidden), "k_proj": (narrow, hidden)}
        attention |= {"v_proj": (narrow, hidden), "o_proj": (hidden, wide)}
        if rank := number("kv_lora_rank"):
            rotary = number("qk_rope_head_dim")
            straight = number("qk_nope_head_dim")
            values = number("v_head_dim", default=straight)
            queries = number("q_lora_rank")
            attention = {
                "kv_a_proj_with_mqa": (rank + rotary, hidden),
                "kv_b_proj": (shape.heads * (straight + values), rank),
                "o_proj": (hidden, shape.heads * values),
                "q_b_proj": (shape.heads * (straight + rotary), queries or hidden),
            }
            if queries:
                attention["q_a_proj"] = (queries, hidden)
        shapes |= {f"{prefix}.self_attn.{k}.weight": v for k, v in attention.items()}
        if not shape.experts or (type(firsts) is int and layer < firsts):
            shapes |= _gated(f"{prefix}.mlp", hidden, dense)
            continue
        shapes[f"{prefix}.mlp.gate.weight"] = (shape.experts, hidden)
        if shared := number("n_shared_experts"):
            shapes |= _gated(f"{prefix}.mlp.shared_experts", hidden, shared * inner)
        for expert in range(shape.experts):
            shapes |= _gated(f"{prefix}.mlp.experts.{expert}", hidden, inner)
    tensors = {k: TensorEntry("BF16", v, 0, 2 * math.prod(v)) for k, v in shapes.items()}
    size = sum(tensor.size for tensor in tensors.values())
    return HeaderSource(name, where, config, tensors, size)


def _gated(prefix: str, hidden: int, inner: int) -> Shapes:
    return {
        f"{prefix}.gate_proj.weight": (inner, hidden),
        f"{prefix}.up_proj.weight": (inner, hidden),
        f"{prefix}.down_proj.weight": (hidden, inner),
    }
