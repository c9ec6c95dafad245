"""Validation of request and trace files before a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.digest import digest_file
from pipeline.core.errors import UsageError
from pipeline.core.untrusted.json import UntrustedJsonError, parse_json, read_json_items
from pipeline.core.untrusted.lines import UntrustedLinesError, read_lines
from recipes.workload import AnyWorkload, FileWorkload, TraceWorkload

TRACE_KEYS = ("timestamp", "input_length", "output_length")
LARGEST = 10**15  # of a number in a trace
LARGEST_FILE = 1 << 30  # bytes of conversations
A_LINE = '{"timestamp": 0, "input_length": 600, "output_length": 80, "hash_ids": [0, 1]}'
A_PROMPT = 'a prompt a line, as {"prompt": "..."}; a list of conversations has a name in .json'
A_CONVERSATION = '[{"conversations": [{"from": "human", "value": "..."}]}, ...]'


@dataclass(frozen=True)
class TrafficFile:
    """Summary of a request file."""

    requests: int  # number of them
    # Tokens of the longest prompt with its answer; None if the file has no token counts.
    longest: int | None
    # Arrival times in seconds from the start; empty if the file has none.
    times: tuple[float, ...]
    shares: bool  # whether two prompts start with the same text


def check_workload(workload: AnyWorkload, where: str, max_length: int | None) -> None:
    """Check that the model can serve the workload; reads its file.

    Args:
        where: location of the workload, for messages.
        max_length: tokens of a prompt with its answer, or None.

    Raises:
        UsageError: the file is wrong, a prompt is too long, or the hit rate is impossible.
    """
    longest, key = workload.longest, "input_tokens"
    if isinstance(workload, FileWorkload):
        found = read_traffic(workload, where)
        longest, key = found.longest, "file"
        if workload.hit_rate and not found.shares:
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
            hint="shorten the workload, or serve with a larger max-model-len",
        )


def read_traffic(workload: FileWorkload, where: str) -> TrafficFile:
    """Summarize the workload's file; raises UsageError with the line and the key."""
    path = workload.path
    try:
        if workload.sha256 is not None and workload.sha256 != digest_file(path):
            raise UsageError(
                "the file's content does not match the digest",
                where=f"{where}, key sha256: {path}",
                hint="name the right file, or remove 'sha256'",
            )
        found = _trace(workload, path) if isinstance(workload, TraceWorkload) else _requests(path)
    except OSError as error:
        raise UsageError(
            f"the file cannot be read: {error.strerror}",
            where=f"{where}, key file: {path}",
            hint="name an existing file",
        ) from error
    except (UntrustedLinesError, UntrustedJsonError) as error:
        raise UsageError(
            f"the file is damaged: {error}", where=f"{where}, key file: {path}", hint="fix the file"
        ) from error
    if not found.requests:
        raise UsageError(
            "the file contains no request",
            where=f"{where}, key file: {path}",
            hint="name a file with requests",
        )
    return found


def trace_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each request of a trace and its place; raises UsageError if it is malformed."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            row = _parse(line, place)
            if not isinstance(row, dict):
                raise UsageError(
                    "a line of the trace is not a JSON object", where=place, hint=f"write {A_LINE}"
                )
            yield place, row


def _parse(line: str, place: str) -> Any:
    try:
        return parse_json(line)
    except UntrustedJsonError as error:
        words = str(error).replace("line 1 column", "column")  # of this line
        raise UsageError(
            f"the line is not JSON: {words}", where=place, hint="write one object per line"
        ) from error


def _trace(workload: TraceWorkload, path: Path) -> TrafficFile:
    times: list[float] = []
    longest, shares = 0, False
    first_blocks: set[int] = set()
    for place, row in trace_rows(path):
        time, asked, answered = (_number(row, key, place) for key in TRACE_KEYS)
        hashes = _hashes(row, place)
        if times and time < times[-1]:
            raise UsageError(
                f"the timestamp {time:g} is before the previous one, {times[-1]:g}",
                where=f"{place}, key timestamp",
                hint="sort the trace by its timestamps",
            )
        needed = -(-int(asked) // workload.block_tokens)
        if len(hashes) < needed:
            raise UsageError(
                f"an input_length of {asked:g} has {needed} blocks of {workload.block_tokens} "
                f"tokens, but there are {len(hashes)} hash_ids",
                where=f"{place}, key hash_ids",
                hint="add one for each block, or set 'block_tokens' to the trace's block size",
            )
        shares |= hashes[0] in first_blocks
        first_blocks.add(hashes[0])
        times.append(time)
        longest = max(longest, int(asked + answered))
    start = times[0] if times else 0.0
    return TrafficFile(len(times), longest, tuple((t - start) / 1000 for t in times), shares)


def _number(row: dict[str, Any], key: str, place: str) -> float:
    value = row.get(key)
    is_time = key == "timestamp"
    kind, least = ("number", 0) if is_time else ("integer", 1)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float) if is_time else int)
        or not least <= value <= LARGEST
    ):
        raise UsageError(
            f"'{key}' is {value!r:.80}, not a {kind} from {least} to {LARGEST:,}"
            if key in row
            else f"'{key}' is missing",
            where=f"{place}, key {key}",
            hint=f"write {A_LINE}",
        )
    return float(value)


def _hashes(row: dict[str, Any], place: str) -> list[int]:
    value = row.get("hash_ids")
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(each, int) and not isinstance(each, bool) for each in value)
    ):
        raise UsageError(
            "'hash_ids' is not a list of integers",
            where=f"{place}, key hash_ids",
            hint=f"write {A_LINE}",
        )
    return value


def _requests(path: Path) -> TrafficFile:
    prompts = list(prompts_of(path))
    beginnings = {prompt[:64] for prompt in prompts}
    return TrafficFile(len(prompts), None, (), shares=len(beginnings) < len(prompts))


def prompts_of(path: Path) -> Iterator[str]:
    """Yield the prompts of JSON Lines, or the first turns of ShareGPT conversations.

    Raises:
        UsageError: a prompt is missing or empty.
        OSError, UntrustedJsonError, UntrustedLinesError: the file cannot be read.
    """
    if path.name.endswith(".json"):
        for number, row in enumerate(read_json_items(path, limit=LARGEST_FILE), start=1):
            turns = row.get("conversations") if isinstance(row, dict) else None
            first = turns[0] if isinstance(turns, list) and turns else {}
            value = first.get("value") if isinstance(first, dict) else None
            if turns == [] or (isinstance(value, str) and not value.strip()):
                continue  # ShareGPT contains some, and vLLM's reader skips them, too
            place = f"{path}, conversation {number}"
            yield _text(value, place, "conversations[0].value", A_CONVERSATION)
        return
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            row = _parse(line, place)
            value = row.get("prompt") if isinstance(row, dict) else None
            yield _text(value, place, "prompt", A_PROMPT)


def _text(value: Any, place: str, key: str, example: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(
            f"'{key}' is not a string or is blank" if value is not None else f"'{key}' is missing",
            where=f"{place}, key {key}",
            hint=f"write {example}",
        )
    return value
