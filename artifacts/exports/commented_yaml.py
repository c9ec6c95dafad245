"""YAML with comments, from plain data.

PyYAML drops comments and leaves words such as `1e3` unquoted, which other readers take for numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from pipeline.core.untrusted.text import one_line

# No YAML version reads these as anything but text.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
_WIDTH = 10**9  # never break a line


@dataclass(frozen=True)
class Noted:
    """A value with a comment above its key or item."""

    comment: str
    value: Any


def to_yaml(*documents: Mapping[str, Any], header: str = "") -> str:
    """Return the documents as YAML text below the header's comment lines."""
    texts = ["\n".join(_lines(document)) for document in documents]
    return "".join(f"{line}\n" for line in [*comment(header), "\n---\n".join(texts)])


def comment(text: str) -> list[str]:
    """Return comment lines, in which untrusted text cannot end the comment."""
    return [f"# {one_line(line)}".rstrip() for line in text.split("\n") if text]


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            if isinstance(item, Noted):
                yield from comment(item.comment)
                item = item.value
            if isinstance(item, (Mapping, list)) and item:
                yield f"{_scalar(key)}:"
                yield from (f"  {line}" for line in _lines(item))
            else:
                yield f"{_scalar(key)}: {_scalar(item)}"
    elif isinstance(value, list) and value:
        for item in value:
            if isinstance(item, Noted):
                yield from comment(item.comment)
                item = item.value
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        return yaml.safe_dump(value, default_style='"', width=_WIDTH).strip()
    return yaml.safe_dump(value, width=_WIDTH).removesuffix("...\n").strip()
