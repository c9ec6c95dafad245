"""A model's small files: chat template, special tokens, sampling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.checkpoints.small_files import TEMPLATES_FOLDER, SmallFiles
from recipes.checkpoints.tokenizer_file import TOKENIZER_CONFIG

TEMPLATE = "chat_template.jinja"
SAMPLING = "generation_config.json"
JINJA = ".jinja"
DEFAULT_NAME = "default"
UNKNOWN_TEMPLATE = ""
"""Template of an external endpoint, which applies its own."""


@dataclass(frozen=True)
class ModelGeneration:
    """Content of these files.

    `template` is None without one, or `UNKNOWN_TEMPLATE`; `named_templates` are the others.
    `special_tokens` has texts by name, and `added_tokens` ids by text.
    """

    where: str = ""
    template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    added_tokens: Mapping[str, int] = field(default_factory=dict)
    tokenizer_class: str = ""
    named_templates: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_template(self) -> bool:
        return self.template is not None

    @property
    def is_template_known(self) -> bool:
        return bool(self.template)


def read_generation(where: str, files: SmallFiles) -> ModelGeneration:
    """Return the content of these files.

    CheckpointError: a file is damaged or too large.
    """
    tokenizer = files.json(TOKENIZER_CONFIG) if TOKENIZER_CONFIG in files else {}
    templates = dict(_named_templates(tokenizer.get("chat_template")))
    if TEMPLATE in files:  # then the tokenizer's are not read
        templates = {DEFAULT_NAME: files.text(TEMPLATE)}
    for name in sorted(files.names):
        folder, _, file = name.rpartition("/")
        if folder == TEMPLATES_FOLDER and file.endswith(JINJA):
            templates[file.removesuffix(JINJA)] = files.text(name)
    return ModelGeneration(
        where=where,
        template=templates.pop(DEFAULT_NAME, None),
        named_templates=templates,
        special_tokens={k: text for k, value in tokenizer.items() if (text := _token(k, value))},
        sampling=files.json(SAMPLING) if SAMPLING in files else {},
        added_tokens=dict(_added(tokenizer.get("added_tokens_decoder"))),
        tokenizer_class=str(tokenizer.get("tokenizer_class") or ""),
    )


def folder_generation(folder: Path) -> ModelGeneration:
    """Apply :func:`read_generation` to a tokenizer's folder."""
    return read_generation(str(folder), SmallFiles.in_folder(folder))


def _named_templates(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the tokenizer's templates by name; of two with one name the last counts."""
    if isinstance(value, str):
        yield DEFAULT_NAME, value
    for entry in value if isinstance(value, list) else ():
        name = entry.get("name") if isinstance(entry, dict) else None
        if isinstance(name, str) and isinstance(entry.get("template"), str):
            yield name, entry["template"]


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
