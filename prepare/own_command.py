"""Commands of `prepare` for hints and next steps, with the store and registry that the user named.

A command that continues another one needs the same `--store` and `--registry`. The parser remembers
them (`remember_place`), and `own_command` adds them where the command takes them. What a variable
PREPARE_* names is not remembered: the next command reads it, too.
"""

from __future__ import annotations

import os
import shlex

WITH_REGISTRY = frozenset(
    {
        "export",
        "gate",
        "gc",
        "model",
        "plan",
        "promote",
        "pull",
        "push",
        "recheck",
        "registry",
        "rollback",
        "serve",
        "tune",
        "verify",
    }
)
WITHOUT_STORE = frozenset({"doctor", "show"})
_PLACES: dict[str, str] = {}


def remember_place(flag: str, value: str) -> None:
    """Remember the value of `--store` or `--registry`."""
    _PLACES[flag] = value


def forget_places() -> None:
    """Forget all places; a process parses more than one command only in tests."""
    _PLACES.clear()


def own_command(name: str, *words: str, registry: str | None = None) -> str:
    """Return `prepare NAME WORDS` as a shell line, with the remembered places.

    `registry` is one that the command needs and that the user may have named in an earlier command.
    """
    places = _PLACES.copy()
    if registry and registry != os.environ.get("PREPARE_REGISTRY"):
        places.setdefault("--registry", registry)
    line = ["prepare", name, *words]
    for flag in ("--store", "--registry"):
        is_taken = name in WITH_REGISTRY if flag == "--registry" else name not in WITHOUT_STORE
        if is_taken and flag in places and flag not in words:
            line += [flag, places[flag]]
    return shlex.join(line)
