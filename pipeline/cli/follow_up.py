"""Follow-up commands in the output, with this command's --store and --registry."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

WITH_REGISTRY = frozenset(
    {"export", "gc", "model", "plan", "promote", "pull", "push", "recheck", "registry"}
    | {"rollback", "serve", "tune", "verify"}
)
WITHOUT_STORE = frozenset({"doctor", "show"})
# With an argument, but for `runs`: "`prepare model` makes variants" is no command to copy.
_COMMAND = re.compile(
    r"`(prepare (?=runs|\w+ )(\w+)[^`]*)`|(?<=Next: )(prepare (?=runs|\w+ )(\w+)[^`,;\n]*)"
)


def given(store: Path | None, registry: str | None = None) -> str:
    """Return ` --store PATH --registry URI`, as far as needed."""
    from pipeline.cli.options import parse_path

    named, words = os.environ.get("PREPARE_STORE"), []
    if store is not None and not (named and parse_path(named) == store):
        words += ["--store", str(store)]
    if registry and registry != os.environ.get("PREPARE_REGISTRY"):
        words += ["--registry", registry]
    return f" {shlex.join(words)}" if words else ""


def repeat_options(text: str, arguments: Sequence[str] | None = None) -> str:
    """Add --store and --registry to commands in the text."""
    found = {
        option: value
        for option in ("--store", "--registry")
        if (value := _find(option, sys.argv[1:] if arguments is None else arguments))
    }

    def repeat(match: re.Match[str]) -> str:
        whole, command = match[1] or match[3], match[2] or match[4]
        for option, value in found.items():
            taken = command in WITH_REGISTRY or option == "--store"
            if taken and command not in WITHOUT_STORE and option not in whole:
                whole = f"{whole} {option} {shlex.quote(value)}"
        return f"`{whole}`" if match[1] else whole

    return _COMMAND.sub(repeat, text) if found else text


def _find(option: str, arguments: Sequence[str]) -> str | None:
    for number, word in enumerate(arguments):
        if word == option and number + 1 < len(arguments):
            return arguments[number + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None
