"""Faults of a checkpoint's tokenizer that its files show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prepare.errors import CheckpointError
from recipes.checkpoints.checkpoint import Checkpoint
from recipes.checkpoints.tokenizer_file import (
    CURE,
    MAX_TOKENS_BEYOND,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TokenizerFile,
    find_unknown_kind,
    swapped_kind,
)
from recipes.weights.accounting import EMBEDDING


def tokenizer_faults(
    file: Path, tokenizer: TokenizerFile, source: Checkpoint
) -> Iterator[CheckpointError]:
    """Yield why libraries do not load the file, read another tokenizer, or the model lacks ids."""
    if unknown := find_unknown_kind(tokenizer.parts):
        yield CheckpointError(
            f"no environment loads the tokenizer: {unknown}",
            where=str(file),
            hint="save it again with a current version of transformers, by the tokenizer's "
            "save_pretrained()",
        )
    named = source.generation.tokenizer_class
    if kind := swapped_kind(tokenizer.parts, named, source.config.get("model_type")):
        yield CheckpointError(
            f"the libraries would read another tokenizer than {TOKENIZER}: it splits text by "
            f"{kind}, and the class '{named}' replaces that by its own, so spaces are lost",
            where=f"{file.parent / TOKENIZER_CONFIG}, key tokenizer_class; {file}",
            hint=CURE,
        )
    embedding = next(filter(EMBEDDING.fullmatch, source.tensors), None)
    if embedding is None:
        return
    rows = source.tensors[embedding].shape[0]
    beyond = tokenizer.count_beyond(rows)
    if beyond > MAX_TOKENS_BEYOND:
        yield CheckpointError(
            f"the tokenizer is another model's: {beyond:,} of its tokens have ids that the "
            f"embedding '{embedding}' of {rows:,} rows lacks",
            where=f"{file}; {source.where}, key vocab_size",
            hint="put the model's own tokenizer files into a copy of the folder",
        )
