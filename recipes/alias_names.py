"""What an alias may be called, in every registry."""

from __future__ import annotations

import re

# A tag of OCI's and a ref of git's, and what MLflow takes as an alias.
_ALIAS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")
# Versions are called v1, v2, ... there; the other names are a registry's own.
_VERSION = re.compile(r"[vV]?\d+")
_TAKEN = ("latest", "main", "HEAD", "prepare-history")

RULE = (
    "letters, digits, '_' and '-' (not at the beginning), 128 at most; not a version's number, "
    f"and none of {', '.join(_TAKEN)}"
)


def can_be_alias(name: str) -> bool:
    """Whether every kind of registry can have an alias of that name."""
    return (
        _ALIAS.fullmatch(name) is not None
        and _VERSION.fullmatch(name) is None
        and name not in _TAKEN
    )
