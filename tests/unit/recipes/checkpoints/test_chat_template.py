"""A tokenizer's chat template and a model's sampling, from the files that transformers reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prepare.errors import CheckpointError
from recipes.checkpoints.chat_template import ModelGeneration, folder_generation
from recipes.checkpoints.small_files import MAX_TEMPLATE_BYTES
from recipes.checkpoints.template_renderer import render

NAMED = [{"name": "default", "template": "{{ messages }}"}]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, False),
        ({"tokenizer_config.json": {}}, False),
        ({"tokenizer_config.json": {"chat_template": None}}, False),
        ({"tokenizer_config.json": {"chat_template": "{{ messages }}"}}, True),
        ({"tokenizer_config.json": {"chat_template": NAMED}}, True),
        ({"tokenizer_config.json": {"chat_template": [{**NAMED[0], "name": "tools"}]}}, False),
        ({"tokenizer_config.json": {}, "chat_template.jinja": "{{ messages }}"}, True),
    ],
)
def test_by_its_files(tmp_path: Path, files: dict[str, Any], expected: bool) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert folder_generation(tmp_path).has_template is expected


FOLDER = "additional_chat_templates"
LISTED = [{"name": "default", "template": "D"}, {"name": "rag", "template": "R"}]


@pytest.mark.parametrize(
    ("configured", "files", "expected"),
    [
        ("C", {}, ("C", {})),
        ("C", {"chat_template.jinja": "J"}, ("J", {})),
        ("C", {f"{FOLDER}/tool_use.jinja": "T"}, (None, {"tool_use": "T"})),
        (LISTED, {f"{FOLDER}/tool_use.jinja": "T"}, (None, {"tool_use": "T"})),
        (None, {"chat_template.jinja": "J", f"{FOLDER}/default.jinja": "D"}, ("D", {})),
        ("C", {f"{FOLDER}/default.jinja": "D"}, ("D", {})),
        ("C", {f"{FOLDER}/note.txt": "N"}, ("C", {})),
        (LISTED, {}, ("D", {"rag": "R"})),
        ({"default": "D", "rag": "R"}, {}, ("D", {"rag": "R"})),
    ],
)
def test_templates_as_transformers_reads_them(
    tmp_path: Path, configured: Any, files: dict[str, str], expected: tuple[str | None, Any]
) -> None:
    """Each row is what transformers 5.17.0 gave for these files."""
    (tmp_path / FOLDER).mkdir()
    written = json.dumps({"chat_template": configured})
    for name, text in {"tokenizer_config.json": written, **files}.items():
        (tmp_path / name).write_text(text)
    model = folder_generation(tmp_path)
    assert (model.template, dict(model.named_templates)) == expected


def test_a_request_with_tools_takes_the_template_for_tools() -> None:
    model = ModelGeneration("x", "plain", named_templates={"tool_use": "{{ tools }}"})
    tools = [{"type": "function"}]
    assert "function" in render(model, [{"tools": tools}]).prompts[0]
    assert render(model, [{}]).prompts == ("plain",)


@pytest.mark.parametrize("value", ["", " \n", 5, [5, *LISTED], [{"name": "default"}], {"a": 1}])
def test_a_template_without_text_is_refused(tmp_path: Path, value: Any) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(CheckpointError) as caught:
        folder_generation(tmp_path)
    assert str(tmp_path) in caught.value.where


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", b""),
        ("tokenizer_config.json", b"{"),
        ("generation_config.json", b"[]"),
        ("chat_template.jinja", b"\xff"),
        ("chat_template.jinja", b" " * (MAX_TEMPLATE_BYTES + 1)),
    ],
)
def test_a_damaged_one(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        folder_generation(tmp_path)
    assert str(tmp_path) in caught.value.where
