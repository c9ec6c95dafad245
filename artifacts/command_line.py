"""The command that repeats a run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError

from prepare.errors import StoreError
from prepare.record import CheckedCopyModel

Names = tuple[str, ...]
RunKind = Literal["model", "gate", "recheck", "tune"]


class CommandOptions(CheckedCopyModel):
    """Options that readers use; commands add others."""

    model_config = ConfigDict(frozen=True, extra="allow")

    checkpoint: str | None = None
    recipes: Names | None = None
    variants: Names | None = None
    served_variants: Names | None = None
    profile: str | None = None
    policy: str | None = None
    version: str | None = None
    name: str | None = None
    registry: str | None = None
    deployment_id: str | None = None
    gpus_a_copy: int | None = None


class RecordedCommand(CommandOptions):
    """Resolved options."""

    requested: CommandOptions | None = None  # as the user wrote them
    recheck: str | None = None
    remeasured: Names | None = None
    attempted: Names | None = None
    trust_remote_code: bool | None = None
    promote: bool | None = None
    cpu_overrides: dict[str, str] | None = None
    kv_cache_note: str | None = None
    speculation: str | None = None
    asked_by: str | None = None


def read_command(command: Mapping[str, Any]) -> RecordedCommand:
    """Parse a run's options; ValueError names a mistyped one."""
    try:
        return RecordedCommand.model_validate(dict(command))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ascii(".".join(map(str, first["loc"])))[1:-1]
        raise ValueError(f"command.{key}: {first['msg']}") from error


# Options that command and record have under the same name, by command.
OPTIONS: dict[RunKind, tuple[str, ...]] = {
    "model": ("profile", "policy", "name", "eval_data", "registry"),
    "gate": (
        *("baseline", "candidate", "baseline_model", "candidate_model", "tokenizer", "api"),
        *("policy", "family", "max_length", "eval_data", "deployment_id"),
    ),
    "recheck": ("registry", "profile", "source", "weights", "eval_data"),
    "tune": ("profile", "policy", "workload", "candidates"),
}
# Options that may be given several times, by the record's name.
REPEATED: dict[RunKind, dict[str, str]] = {
    "model": {
        "recipes": "--recipe",
        "variants": "--variant",
        "served_variants": "--served-variant",
    },
    "recheck": {"remeasured": "--remeasure"},
}
FLAGS: dict[RunKind, dict[str, str]] = {
    "model": {"ablate": "--ablate", "screen": "--screen", "until_pass": "--until pass"},
    "recheck": {"force": "--force"},
}
PATHS = ("tokenizer", "eval_data", "weights")


def command_line(kind: RunKind, command: Mapping[str, Any], *, public: bool = False) -> str:
    """Return a shell line without passwords.

    `public` turns paths into `./NAME` and omits the registry.
    """
    try:
        options = read_command(command)
    except ValueError as error:
        raise StoreError(
            f"what a run was asked for cannot be understood: {error}",
            where="run.json, key command",
            hint="a user changed the record, or another version of prepare wrote it",
        ) from error
    asked = {**command, **(command.get("requested") or {})}
    subject = "" if kind == "gate" else asked.get("recheck" if kind == "recheck" else "checkpoint")
    words = ["prepare", kind, *([_show(str(subject), public=public)] if subject else [])]
    for key, option in REPEATED.get(kind, {}).items():
        for value in asked.get(key) or ():
            words += [option, _show_named(value, public=public)]
    for key in OPTIONS[kind]:
        if asked.get(key) and not (public and key == "registry"):
            is_path = key in PATHS
            value = _show(str(asked[key]), public=public, is_path=is_path)
            words += [f"--{key.replace('_', '-')}", value]
    if options.trust_remote_code:
        words.append("--trust-remote-code")
    for key, option in FLAGS.get(kind, {}).items():
        words += option.split() if asked.get(key) else []
    if kind == "model" and options.promote is False:
        words.append("--no-promote")
    return shlex.join(without_password(word) for word in words)


def without_password(text: str) -> str:
    """Remove a URL's user and password."""
    return re.sub(r"//[^/@\s]+@", "//***@", text)


def _show(text: str, *, public: bool, is_path: bool = False) -> str:
    """Return a value; `public`: a path by its last part."""
    is_path = is_path or text.startswith(("/", ".", "~")) or text.endswith((".yaml", ".yml"))
    return f"./{Path(text).name}" if public and is_path else text


def _show_named(text: str, *, public: bool) -> str:
    """Return a value, or a NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or "/" in name:
        return _show(text, public=public)
    return f"{name}={_show(value, public=public)}"
