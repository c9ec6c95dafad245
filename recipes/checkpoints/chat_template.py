"""A model's small files: chat template, special tokens, sampling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prepare.errors import CheckpointError, raise_as
from prepare.untrusted import MEBIBYTE, read_regular
from recipes.checkpoints.weight_files import read_json

TEMPLATE = "chat_template.jinja"
TOKENIZER = "tokenizer_config.json"
SAMPLING = "generation_config.json"
MAX_TEMPLATE_BYTES = MEBIBYTE
UNKNOWN_TEMPLATE = ""
"""Template of an external endpoint, which applies its own."""


@dataclass(frozen=True)
class ModelGeneration:
    """Content of these files.

    `template` is None without one, or `UNKNOWN_TEMPLATE`. `special_tokens` has texts by name, and
    `added_tokens` ids by text.
    """

    where: str = ""
    template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    added_tokens: Mapping[str, int] = field(default_factory=dict)
    tokenizer_class: str = ""

    @property
    def has_template(self) -> bool:
        return self.template is not None

    @property
    def is_template_known(self) -> bool:
        return bool(self.template)


def read_generation(
    where: str, names: Collection[str], locate: Callable[[str], Path]
) -> ModelGeneration:
    """Return the content of the files of those names.

    CheckpointError: a file is damaged or too large.
    """
    tokenizer = read_json(locate(TOKENIZER)) if TOKENIZER in names else {}
    return ModelGeneration(
        where,
        _read_text(locate(TEMPLATE))
        if TEMPLATE in names
        else _template_of(tokenizer.get("chat_template")),
        {key: text for key, value in tokenizer.items() if (text := _token(key, value))},
        read_json(locate(SAMPLING)) if SAMPLING in names else {},
        dict(_added(tokenizer.get("added_tokens_decoder"))),
        str(tokenizer.get("tokenizer_class") or ""),
    )


def folder_generation(folder: Path) -> ModelGeneration:
    """Apply :func:`read_generation` to a tokenizer's folder."""
    names = {file.name for file in folder.iterdir()}
    return read_generation(str(folder), names, lambda name: folder / name)


def _template_of(value: Any) -> str | None:
    if isinstance(value, list):  # several named templates
        named = (one for one in value if isinstance(one, dict) and one.get("name") == "default")
        value = next((one.get("template") for one in reversed([*named])), None)
    return value if isinstance(value, str) else None


def _token(key: str, value: Any) -> str | None:
    if not key.endswith("_token"):
        return None
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _added(value: Any) -> Iterator[tuple[str, int]]:
    for number, token in value.items() if isinstance(value, dict) else ():
        text = token.get("content") if isinstance(token, dict) else None
        if isinstance(text, str) and str(number).isdecimal():
            yield text, int(number)


def _read_text(path: Path) -> str:
    with raise_as(
        CheckpointError,
        "the chat template cannot be read",
        path,
        "download it again",
        errors=(OSError, ValueError),
    ):
        return read_regular(path, MAX_TEMPLATE_BYTES).decode("utf-8")
