"""The command that repeats a run, from its record."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.recorded_command import RunKind, read_command
from pipeline.core.errors import StoreError

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
    """Return one shell line, without passwords in URLs.

    `public` omits private data: paths become `./NAME`, and there is no registry. Raises StoreError
    for an option of the wrong type.
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
    if kind == "model" and options.ablate:
        words.append("--ablate")
    if kind == "model" and options.promote is False:
        words.append("--no-promote")
    return shlex.join(without_password(word) for word in words)


def without_password(text: str) -> str:
    """Remove a URL's user and password from the text."""
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
