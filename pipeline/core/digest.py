"""Digests: of plain data, of bytes and of files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.core.untrusted.file import open_regular


def digest_bytes(data: bytes) -> str:
    """sha256 of the bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """sha256 of a file's content, in hexadecimal, read again; see FileDigests for a kept one."""
    with open_regular(path, None) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digest_json(value: Any) -> str:
    """sha256 of a value's canonical JSON: keys sorted, no blanks, ASCII.

    Equal data has an equal digest whatever the order of its keys; 1 and 1.0 differ.

    Raises:
        ValueError: a number is NaN or infinite, which JSON cannot say.
        TypeError: a value is no plain data.
    """
    text = json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return digest_bytes(text.encode("ascii"))
