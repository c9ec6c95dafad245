"""Checks that every first-party name that a file imports exists: mypy does not cover the tests.

Usage: check_imports.py, in the repository. Covers `from module import name`, and `module.name` for
an imported module.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("prepare", "pipeline", "recipes", "eval_gates", "artifacts")


def main() -> int:
    """Print each import of a missing module or name; return 1 if there is one."""
    listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True)
    files = [Path(name) for name in listed.stdout.split() if Path(name).is_file()]
    trees = {file: ast.parse(file.read_text()) for file in files}
    modules: dict[str, set[str]] = {}
    for file, tree in trees.items():
        name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        modules[name] = set(bound_names(tree))
        if file.parts[0] not in PACKAGES:  # pytest and scripts import neighbors by their file name
            modules.setdefault(file.stem, set()).update(modules[name])
    faults = [f"{file}:{fault}" for file, tree in trees.items() for fault in check(tree, modules)]
    print("\n".join(faults), end="\n" if faults else "")
    return bool(faults)


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds outside of its functions and classes."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        pending += ast.iter_child_nodes(node)


def check(tree: ast.Module, modules: dict[str, set[str]]) -> Iterator[str]:
    """Yield the faults of one file, with their lines."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module not in modules and node.module.split(".")[0] in PACKAGES:
                yield f"{node.lineno}: no module {node.module}"
            for alias in node.names if node.module in modules else ():
                submodule = f"{node.module}.{alias.name}"
                if submodule in modules:
                    imported[alias.asname or alias.name] = submodule
                elif alias.name not in modules[node.module]:
                    yield f"{node.lineno}: no {alias.name} in {node.module}"
    rebound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    rebound |= {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = imported.get(node.value.id, "")
            known = modules.get(module, set()) | {"__name__", "__file__", "__doc__", "__dict__"}
            missing = node.attr not in known and f"{module}.{node.attr}" not in modules
            if module and node.value.id not in rebound and missing:
                yield f"{node.lineno}: no {node.attr} in {module}"


if __name__ == "__main__":
    sys.exit(main())
