"""Validation of request files before a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prepare.digest import digest_file
from prepare.errors import UsageError, raise_as
from prepare.untrusted import (
    UntrustedJsonError,
    UntrustedLinesError,
    parse_json,
    read_json_file,
    read_lines,
)
from recipes.workload import AnyWorkload, FileWorkload

LARGEST_FILE = 1 << 30
MAX_VALUES = 10_000_000  # of conversations
A_PROMPT = 'a prompt a line, as {"prompt": "..."}; a list of conversations has a name in .json'
A_CONVERSATION = '[{"conversations": [{"from": "human", "value": "..."}]}, ...]'


def check_workload(workload: AnyWorkload, where: str, max_length: int | None) -> None:
    """Check that the model can serve the workload; reads its file.

    `max_length` counts a prompt with its answer.
    """
    longest = workload.longest
    key = "input_tokens"
    if isinstance(workload, FileWorkload):
        prompts = read_traffic(workload, where)
        if workload.hit_rate and len({prompt[:64] for prompt in prompts}) == len(prompts):
            raise UsageError(
                f"a hit_rate of {workload.hit_rate:g} is declared, but no two prompts start with "
                "the same text",
                where=f"{where}, key hit_rate",
                hint="remove 'hit_rate', or declare 0",
            )
    elif workload.kind == "shared_prefix":
        key = "prefix_tokens"
    if longest is not None and max_length is not None and longest > max_length:
        raise UsageError(
            f"the longest prompt with its answer has {longest:,} tokens, but the server accepts "
            f"only {max_length:,}",
            where=f"{where}, key {key}",
            hint="shorten the workload, or serve with a larger max-model-len, up to the model's "
            "context",
        )


def read_traffic(workload: FileWorkload, where: str) -> list[str]:
    """Return the file's prompts; UsageError has the line and the key."""
    path = workload.path
    key = f"{where}, key file: {workload.path}"
    damage = (UntrustedLinesError, UntrustedJsonError)
    with (
        raise_as(UsageError, "the file cannot be read", key, "name an existing file"),
        raise_as(UsageError, "the file is damaged", key, "fix the file", errors=damage),
    ):
        if workload.sha256 is not None and workload.sha256 != digest_file(path):
            raise UsageError(
                "the file's content does not match the digest",
                where=f"{where}, key sha256: {path}",
                hint="name the right file, or remove 'sha256'",
            )
        prompts = list(prompts_of(path))
    if not prompts:
        raise UsageError(
            "the file contains no request", where=key, hint="name a file with requests"
        )
    return prompts


def prompts_of(path: Path) -> Iterator[str]:
    """Yield the prompts of JSON Lines, or the first turns of ShareGPT conversations.

    OSError, UntrustedJsonError and UntrustedLinesError for an unreadable file.
    """
    if path.name.endswith(".json"):
        rows = read_json_file(path, limit=LARGEST_FILE, values=MAX_VALUES)
        if not isinstance(rows, list):
            raise UntrustedJsonError("it is not a list")
        for number, row in enumerate(rows, start=1):
            turns = row.get("conversations") if isinstance(row, dict) else None
            first = turns[0] if isinstance(turns, list) and turns else {}
            value = first.get("value") if isinstance(first, dict) else None
            if turns == [] or (isinstance(value, str) and not value.strip()):
                continue  # ShareGPT contains some, and vLLM's reader skips them, too
            place = f"{path}, conversation {number}, key conversations[0].value"
            yield _text(value, place, A_CONVERSATION)
        return
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        hint = "write one object per line"
        with raise_as(UsageError, "it is not JSON", place, hint, errors=UntrustedJsonError):
            row = parse_json(line)
        value = row.get("prompt") if isinstance(row, dict) else None
        yield _text(value, f"{place}, key prompt", A_PROMPT)


def _text(value: Any, where: str, example: str) -> str:
    if not isinstance(value, str) or not value.strip():
        message = "the prompt is missing, blank or not a string"
        raise UsageError(message, where=where, hint=f"write {example}")
    return value
