"""A tokenizer's chat template and a model's sampling, from the files that transformers reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prepare.errors import CheckpointError
from recipes.checkpoints.chat_template import folder_generation
from recipes.checkpoints.small_files import MAX_TEMPLATE_BYTES

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
        ({"tokenizer_config.json": {"chat_template": [5, {"name": []}, *NAMED]}}, True),
        ({"tokenizer_config.json": {}, "chat_template.jinja": "{{ messages }}"}, True),
    ],
)
def test_by_its_files(tmp_path: Path, files: dict[str, Any], expected: bool) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert folder_generation(tmp_path).has_template is expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
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
