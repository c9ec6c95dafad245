"""Measure how much there is to read: prints one JSON line. Run it from the root of a checkout.

`lines_imported_by_run` counts the modules of this project that `pipeline.run.model` imports.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

PRODUCT = ("pipeline", "recipes", "eval_gates", "artifacts")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
IMPORTED = """
import json, sys
import pipeline.run.model
print(json.dumps([m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)]))
"""


def main() -> None:
    """Print the figures of this checkout."""
    root = Path.cwd()
    product = [file for name in PRODUCT for file in sorted((root / name).rglob("*.py"))]
    tests = sorted((root / "tests").rglob("*.py"))
    pages = [*sorted((root / "docs").rglob("*.md")), *(root / name for name in PAGES)]
    trees = [ast.parse(file.read_text()) for file in product]
    names = Counter(node.name for tree in trees for node in tree.body if is_public_class(node))
    figures = {
        "product_files": len(product),
        "product_lines": count_lines(product),
        "test_lines": count_lines(tests),
        "words_in_pages": sum(len(file.read_text().split()) for file in pages),
        "words_in_docstrings": sum(map(count_docstring_words, trees)),
        "lines_imported_by_run": count_lines(find_imported(root)),
        "class_names_with_two_meanings": sum(count > 1 for count in names.values()),
    }
    print(json.dumps(figures))


def count_lines(files: list[Path]) -> int:
    """Lines of all files together."""
    return sum(len(file.read_text().splitlines()) for file in files)


def is_public_class(node: ast.stmt) -> bool:
    """Whether the statement defines a class whose name has no leading underscore."""
    return isinstance(node, ast.ClassDef) and not node.name.startswith("_")


def count_docstring_words(tree: ast.Module) -> int:
    """Words in the docstrings of a module, its classes and functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return sum(len(text.split()) for text in found if text)


def find_imported(root: Path) -> list[Path]:
    """Files of this checkout that are loaded once `pipeline.run.model` is imported."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], cwd=root, capture_output=True, text=True, check=True
    )
    files = (Path(name) for name in json.loads(done.stdout))
    return [file for file in files if any(file.is_relative_to(root / name) for name in PRODUCT)]


if __name__ == "__main__":
    main()
