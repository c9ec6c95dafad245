"""Identity of this prepare installation."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from pipeline import __version__

PACKAGES = ("artifacts", "eval_gates", "pipeline", "recipes")
DIGITS = 12
# Code and its data: environment locks, engine arguments, questions.
KINDS = (".py", ".txt", ".yaml", ".toml", ".jsonl")


@cache
def this_prepare() -> str:
    """Return the version with a digest of the code, as in `0.1.0+code.4f5a0c31b2d7`.

    It is cached: changed files do not affect imported modules.
    """
    return f"{__version__}+code.{digest_code(Path(__file__).parents[2])[:DIGITS]}"


def digest_code(root: Path) -> str:
    """Return the SHA-256 over names and contents of all files of KINDS in PACKAGES.

    Hidden files are excluded: editors create them.
    """
    digest = hashlib.sha256()
    for file in sorted(file for name in PACKAGES for file in (root / name).rglob("*")):
        if file.suffix in KINDS and not file.name.startswith(".") and file.is_file():
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(root).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()
