"""SHA-256 digests of plain data, bytes and files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.core.untrusted import open_regular


def digest_bytes(data: bytes) -> str:
    """Return the SHA-256 of the bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; FileDigests caches this for large files."""
    with open_regular(path, None) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digest_json(value: Any) -> str:
    """Return the SHA-256 of canonical JSON: sorted keys, no spaces, ASCII; 1 and 1.0 differ.

    Raises:
        ValueError: a number is NaN or infinite.
        TypeError: a value is not plain data.
    """
    text = json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return digest_bytes(text.encode("ascii"))
