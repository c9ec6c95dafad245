"""Links between the pages lead somewhere, and the index names every page."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INDEX = ROOT / "docs" / "index.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
NAMED_IN_CODE = re.compile(r"(?<![\w/.])docs/[\w/-]+\.md(?:#[\w-]+)?")
PLACES = (
    "docs/ci",
    "docs/cluster",
    "pipeline",
    "recipes",
    "eval_gates",
    "artifacts",
    "benchmarks",
    "scripts",
    "Containerfile",
    "Makefile",
)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def targets(page: Path) -> list[str]:
    """What the page links to, but the web."""
    return [found for found in LINK.findall(CODE.sub("", page.read_text())) if "://" not in found]


def check(file: Path, anchor: str) -> None:
    assert file.exists(), file
    assert not anchor or anchor in anchors(file), f"{file}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in targets(page):
        path, _, anchor = target.partition("#")
        check(page.parent / path if path else page, anchor)


def test_the_index_names_every_page() -> None:
    named = {
        Path(os.path.normpath(INDEX.parent / target.partition("#")[0])) for target in targets(INDEX)
    }
    assert {page for page in PAGES if page.is_relative_to(INDEX.parent)} - named == {INDEX}


def test_every_page_named_in_code_exists() -> None:
    """Messages and comments name pages by their path from the root."""
    files = [
        file
        for place in PLACES
        for file in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*"))
        if file.suffix in {".py", ".yaml", ".yml", ".toml", ".md", ".sh", ""} and file.is_file()
    ]
    found = {(file, name) for file in files for name in NAMED_IN_CODE.findall(file.read_text())}
    assert found
    for _, name in found:
        path, _, anchor = name.partition("#")
        check(ROOT / path, anchor)
