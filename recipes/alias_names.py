"""Alias names that every kind of registry accepts."""

from __future__ import annotations

import re

# Valid as an OCI tag, a git ref and an MLflow alias.
_ALIAS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")
# Registries name versions v1, v2, ... and reserve the names below.
_VERSION = re.compile(r"[vV]?\d+")
_TAKEN = ("latest", "main", "HEAD", "prepare-history")

RULE = (
    "letters, digits, '_' and '-' (not at the beginning), 128 at most; not a version's number, "
    f"and none of {', '.join(_TAKEN)}"
)


def can_be_alias(name: str) -> bool:
    """Return whether every kind of registry accepts the name as an alias."""
    return (
        _ALIAS.fullmatch(name) is not None
        and _VERSION.fullmatch(name) is None
        and name not in _TAKEN
    )
