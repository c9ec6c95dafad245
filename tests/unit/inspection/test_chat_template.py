"""Whether a tokenizer has a chat template, from the files that transformers reads it from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import CheckpointError
from pipeline.inspection.chat_template import folder_has_chat_template

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
    assert folder_has_chat_template(tmp_path) is expected


def test_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError) as caught:
        folder_has_chat_template(tmp_path)
    assert str(tmp_path) in caught.value.where
