"""Which prepare this is: its version, and its code and data, which no key of a stage sees."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from pipeline import __version__

PACKAGES = ("artifacts", "eval_gates", "pipeline", "recipes")
DIGITS = 12
# Code, and what it goes by: what environments are made of, arguments of the engine, questions.
KINDS = (".py", ".txt", ".yaml", ".toml", ".jsonl")


@cache
def this_prepare() -> str:
    """The version with a digest of the code, as `0.1.0+code.4f5a0c31b2d7`.

    What a process has imported does not change when its files do, nor does this.
    """
    return f"{__version__}+code.{digest_code(Path(__file__).parents[2])[:DIGITS]}"


def digest_code(root: Path) -> str:
    """sha256 over the names and contents of all files of KINDS of the packages in that folder.

    Hidden files have no part in it: editors make them, and nothing imports them.
    """
    digest = hashlib.sha256()
    for file in sorted(file for name in PACKAGES for file in (root / name).rglob("*")):
        if file.suffix in KINDS and not file.name.startswith(".") and file.is_file():
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(root).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()
