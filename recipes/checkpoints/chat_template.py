"""A model's small files: chat template, special tokens, sampling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prepare.errors import CheckpointError
from recipes.checkpoints.small_files import TEMPLATES_FOLDER, SmallFiles
from recipes.checkpoints.tokenizer_file import TOKENIZER_CONFIG

TEMPLATE = "chat_template.jinja"
SAMPLING = "generation_config.json"
JINJA = ".jinja"
DEFAULT_NAME = "default"
TOOLS_NAME = "tool_use"
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

    def template_of(self, *, tools: bool) -> str | None:
        """Return the template that a server takes for a request with or without tools."""
        return self.named_templates.get(TOOLS_NAME, self.template) if tools else self.template


def read_generation(where: str, files: SmallFiles) -> ModelGeneration:
    """Return the content of these files.

    CheckpointError: a file is damaged or too large, or a template has no text.
    """
    tokenizer = files.json(TOKENIZER_CONFIG) if TOKENIZER_CONFIG in files else {}
    # As in transformers: any file of templates replaces all templates of the tokenizer's config.
    templates = dict(_template_files(files)) or _configured_templates(tokenizer, where)
    for name, template in templates.items():
        if not template.strip():
            raise CheckpointError(
                f"the chat template '{name}' is empty, so a server would ask nothing",
                where=where,
                hint="download the checkpoint again, or remove the template",
            )
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


def _template_files(files: SmallFiles) -> Iterator[tuple[str, str]]:
    """Yield templates of files by name; one called `default` comes last, as in transformers."""
    if TEMPLATE in files:
        yield DEFAULT_NAME, files.text(TEMPLATE)
    for name in sorted(files.names):
        folder, _, file = name.rpartition("/")
        if folder == TEMPLATES_FOLDER and file.endswith(JINJA):
            yield file.removesuffix(JINJA), files.text(name)


def _configured_templates(tokenizer: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the tokenizer's templates by name; of two with one name the last counts."""
    value = tokenizer.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT_NAME: value}
    named = value
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        named = {str(entry.get("name")): entry.get("template") for entry in value}
    if isinstance(named, dict) and all(isinstance(text, str) for text in named.values()):
        return named
    raise CheckpointError(
        "the chat template is neither a text nor a list of names and templates",
        where=f"{where}, {TOKENIZER_CONFIG}, key chat_template",
        hint="download the checkpoint again",
    )


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
