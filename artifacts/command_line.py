"""The command that repeats a run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError

from pipeline.core.errors import StoreError
from pipeline.core.record import CheckedCopyModel

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
    workload: str | None = None
    candidates: str | None = None
    version: str | None = None
    name: str | None = None
    registry: str | None = None
    eval_data: str | None = None
    source: str | None = None
    weights: str | None = None
    tokenizer: str | None = None
    deployment_id: str | None = None
    api: str | None = None
    family: str | None = None
    baseline: str | None = None
    candidate: str | None = None
    baseline_model: str | None = None
    candidate_model: str | None = None
    max_length: int | None = None
    gpus_a_copy: int | None = None


class RecordedCommand(CommandOptions):
    """Resolved options."""

    requested: CommandOptions | None = None  # as the user wrote them
    recheck: str | None = None
    force: bool | None = None
    remeasured: Names | None = None
    attempted: Names | None = None
    changed: Names | None = None
    trust_remote_code: bool | None = None
    promote: bool | None = None
    cpu_overrides: dict[str, str] | None = None
    kv_cache_note: str | None = None
    speculation: str | None = None
    asked_by: str | None = None
    ablate: bool | None = None
    screen: bool | None = None
    until_pass: bool | None = None


def read_command(command: Mapping[str, Any]) -> RecordedCommand:
    """Parse a run's options; ValueError names a mistyped one."""
    try:
        return RecordedCommand.model_validate(dict(command))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ascii(".".join(map(str, first["loc"])))[1:-1]
        raise ValueError(f"command.{key}: {first['msg']}") from error


# Options of both commands that the record stores under the same name.
GATE_OPTIONS: tuple[str, ...] = (
    "baseline",
    "candidate",
    "baseline_model",
    "candidate_model",
    "tokenizer",
    "api",
    "policy",
    "family",
    "max_length",
    "eval_data",
    "deployment_id",
)
TUNE_OPTIONS = ("profile", "policy", "workload", "candidates")
RECHECK_OPTIONS = ("registry", "profile", "source", "weights", "eval_data")
MODEL_OPTIONS = ("profile", "policy", "name", "eval_data")
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
    if kind == "gate":
        words, named = ["prepare", "gate"], GATE_OPTIONS
    elif kind == "recheck":
        words, named = ["prepare", "recheck", options.recheck or ""], RECHECK_OPTIONS
    else:
        checkpoint = str(asked.get("checkpoint", ""))
        words = ["prepare", kind, _show_checkpoint(checkpoint) if public else checkpoint]
        for recipe in (asked.get("recipes") or []) if kind == "model" else ():
            words += ["--recipe", _show(recipe, public=public)]
        for variant in asked.get("variants") or ():
            words += ["--variant", _show_variant(variant) if public else variant]
        for variant in asked.get("served_variants") or ():
            words += ["--served-variant", variant]
        named = MODEL_OPTIONS if public else (*MODEL_OPTIONS, "registry")
    named = TUNE_OPTIONS if kind == "tune" else named
    for option in named:
        if asked.get(option):
            value = _show(asked[option], public=public, path=option in PATHS)
            words += [f"--{option.replace('_', '-')}", value]
    if options.trust_remote_code:
        words.append("--trust-remote-code")
    if kind == "recheck" and options.force:
        words.append("--force")
    for gate in (options.remeasured or ()) if kind == "recheck" else ():
        words += ["--remeasure", gate]
    if kind == "model":
        words += ["--ablate"] * bool(options.ablate) + ["--screen"] * bool(options.screen)
        words += ["--until", "pass"] * bool(options.until_pass)
    if kind == "model" and options.promote is False:
        words.append("--no-promote")
    return shlex.join(without_password(word) for word in words)


def without_password(text: str) -> str:
    """Remove a URL's user and password."""
    return re.sub(r"//[^/@\s]+@", "//***@", text)


def _show(value: Any, *, public: bool, path: bool = False) -> str:
    text = str(value)
    is_path = path or text.endswith((".yaml", ".yml"))
    return f"./{Path(text).name}" if public and is_path else text


def _show_variant(text: str) -> str:
    name, equals, ref = text.partition("=")
    return f"{name}={_show_checkpoint(ref)}" if equals else _show_checkpoint(text)


def _show_checkpoint(ref: str) -> str:
    is_folder = ref.startswith(("/", ".", "~")) or not ("/" in ref or ref.startswith("demo:"))
    return f"./{Path(ref).name}" if is_folder else ref
