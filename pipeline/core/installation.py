"""Which prepare this is: its version, and its code, which no key of a stage sees."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from pipeline import __version__

PACKAGES = ("artifacts", "eval_gates", "pipeline", "recipes")
DIGITS = 12


@cache
def this_prepare() -> str:
    """The version with a digest of the code, as `0.1.0+code.4f5a0c31b2d7`; of 450 files in 20 ms.

    What a process has imported does not change when its files do, nor does this.
    """
    return f"{__version__}+code.{digest_code(Path(__file__).parents[2])[:DIGITS]}"


def digest_code(root: Path) -> str:
    """sha256 over the names and contents of all Python files of the packages in that folder."""
    digest = hashlib.sha256()
    for file in sorted(file for name in PACKAGES for file in (root / name).rglob("*.py")):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(root).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()
