"""The generated reference pages follow from the models and the command line."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def generate() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, str] = module.pages()
    return pages


def test_reference_pages_are_those_that_make_reference_writes() -> None:
    pages = generate()
    stale = [
        name
        for name, text in pages.items()
        if (ROOT / "docs" / "reference" / name).read_text() != text
    ]
    assert stale == [], "run `make reference`"
    assert "`alpha`" in pages["configuration.md"]
    assert "## prepare model" in pages["cli.md"]
