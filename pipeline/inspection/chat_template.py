"""Detection of a tokenizer's chat template from small files."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pipeline.checkpoint.weight_files import read_json

TEMPLATE = "chat_template.jinja"
TOKENIZER = "tokenizer_config.json"


def has_chat_template(names: Collection[str], read: Callable[[str], dict[str, Any]]) -> bool:
    """Return whether transformers finds a chat template."""
    if TEMPLATE in names:
        return True
    template = read(TOKENIZER).get("chat_template") if TOKENIZER in names else None
    if isinstance(template, list):  # several named templates; the default is used
        return any(isinstance(one, dict) and one.get("name") == "default" for one in template)
    return isinstance(template, str)


def folder_has_chat_template(folder: Path) -> bool:
    """Apply :func:`has_chat_template` to a tokenizer's folder."""
    names = {file.name for file in folder.iterdir()}
    return has_chat_template(names, lambda name: read_json(folder / name))
