"""Calibration texts as blocks of tokens; as a worker, a Hub dataset's rows.

That worker has the Hub's token and runs no code of a checkpoint.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from prepare.errors import StageError, UsageError, raise_as
from prepare.events import Progress
from prepare.untrusted import UntrustedLinesError, parse_json, read_lines
from recipes.dataset_commit import load_from_hub

# ShareGPT's names of roles, and those of chat templates.
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_call": "assistant",
}
ROWS = "calibration.jsonl"
# How a file's rows are read, by the end of its name; each may be gzipped.
TEXTS = "text"
FORMS = {".jsonl": "jsonl", ".txt": TEXTS, ".csv": "csv", ".tsv": "tsv"}
FIRST_ROWS = 8  # that show what a file of texts is
READ = f"{', '.join(FORMS)}, each also with .gz"
# Any of these is found under a name that is one of them: recipes name what their own data has.
COLUMNS = ("text", "messages", "conversations")
ROLES = ("system", "developer", "user", "assistant", "tool")


def form_of(file: Path, where: str) -> str:
    """Return the form of a file's rows; UsageError for another one."""
    name = file.name.removesuffix(".gz")
    form = FORMS.get(Path(name).suffix)
    if form is None:
        raise UsageError(
            "calibration texts of this form are not read",
            where=f"{file} ({where})",
            hint=f"the end of the name says how they are read: {READ}",
        )
    return form


def read_rows(file: Path, form: str) -> Iterator[tuple[int, Any]]:
    """Yield each row's line, and a line of JSON, a text, or a table's row by its header.

    UntrustedLinesError: damaged, or no such table.
    """
    lines = read_lines(file)
    if form in ("csv", "tsv"):
        yield from _table_rows(lines, "," if form == "csv" else "\t")
        return
    rows = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    first = list(islice(rows, FIRST_ROWS))
    if form == TEXTS and first and all(_is_object(line) for _, line in first):
        raise UntrustedLinesError(
            "its lines are JSON objects, and would be calibrated on as they are written: name the "
            "file .jsonl"
        )
    yield from first
    yield from rows


def _is_object(line: str) -> bool:
    try:
        return isinstance(parse_json(line, finite=False, whole_text=False), dict)
    except ValueError:
        return False


def _table_rows(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise UntrustedLinesError("its first line, the columns' names, has a name twice")
        for row in reader:
            if len(row) != len(header) and row:
                raise UntrustedLinesError(
                    f"line {reader.line_num} has {len(row)} values for {len(header)} columns"
                )
            if row:
                yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UntrustedLinesError(f"line {reader.line_num}: {error}") from error


def parse_row(row: Any, form: str, column: str) -> str | list[dict[str, Any]]:
    """Return the text or messages of a row of :func:`read_rows`.

    A ValueError's message is a clause.
    """
    if form == "text":
        return str(row)
    return text_or_chat(parse_json(row, whole_text=False) if form == "jsonl" else row, column)


def text_or_chat(row: Any, column: str) -> str | list[dict[str, Any]]:
    """Return a row's text, or its messages with `role` and `content`, also from ShareGPT.

    A ValueError's message is a clause.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"it is {_kind(row)} and not an object with the key '{column}'")
    names = (column, *COLUMNS) if column in COLUMNS else (column,)
    key = next((name for name in names if name in row), "")
    if not key:
        keys = ", ".join(map(str, row)) or "none"
        raise ValueError(f"it lacks the key '{column}'; it has {keys}")
    value = row[key]
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(f"its '{key}' is {_kind(value)} and neither text nor messages")
    return [_message(message, number, key) for number, message in enumerate(value, start=1)]


def _message(message: Any, number: int, key: str) -> dict[str, Any]:
    where = f"message {number} of its '{key}'"
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} is {_kind(message)} and not an object")
    if "from" in message and "role" not in message:
        role = SHAREGPT_ROLES.get(str(message["from"]))
        if role is None:
            raise ValueError(
                f"{where} is from '{message['from']!s:.40}', and known are "
                f"{', '.join(SHAREGPT_ROLES)}"
            )
        message = {"role": role, "content": message.get("value")}
    role = message.get("role")
    content = message.get("content")
    if role not in ROLES:
        raise ValueError(f"{where} has the role '{role!s:.40}', and known are {', '.join(ROLES)}")
    if not isinstance(content, str | list) and not message.get("tool_calls"):
        raise ValueError(f"{where} has no content")
    return dict(message)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    if value is None:
        return "null"
    if value == []:
        return "an empty list"
    return names.get(type(value), "a number")


def calibration_blocks(
    calibration: dict[str, Any],
    file: str,
    tokenizer: Any,
    progress: Progress,
    *,
    unseen: int = 0,
) -> list[list[int]]:
    """Return texts, shuffled by seed and concatenated, in blocks of exactly max_tokens tokens.

    Padding would distort the statistics. Up to `unseen` blocks that are not to be calibrated on
    come after the recipe's `samples`.
    """
    texts = read_texts(calibration, file, tokenizer)
    random.Random(calibration["seed"]).shuffle(texts)  # noqa: S311 - not for secrets
    length = calibration["max_tokens"]
    wanted = calibration["samples"]
    stream: list[int] = []
    for text in texts:
        stream.extend(tokenizer(text, add_special_tokens=False)["input_ids"])
        if tokenizer.eos_token_id is not None:
            stream.append(tokenizer.eos_token_id)
        if len(stream) >= length * (wanted + unseen):
            break
    blocks = [stream[start : start + length] for start in range(0, len(stream), length)]
    whole = [block for block in blocks if len(block) == length][: wanted + unseen]
    if not whole:
        raise StageError(
            f"the calibration texts have {len(stream)} tokens, less than one block of {length}",
            where=f"recipe key quantization.calibration, {file}",
            hint="give more text, or a smaller max_tokens",
        )
    if len(whole) < wanted:
        progress.note(
            f"calibrating with {len(whole)} blocks of {length} tokens instead of {wanted}: "
            f"the texts have only {len(stream)} tokens"
        )
    return whole


def run(calibration: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write drawn rows of a Hub dataset to `output`/ROWS."""
    rows = load_from_hub(
        calibration["dataset"], split=calibration["split"], revision=calibration["revision"]
    )
    shuffled = rows.shuffle(seed=calibration["seed"])
    rows = shuffled.select(range(min(len(rows), 4 * calibration["samples"])))
    lines = [json.dumps(row, default=str) + "\n" for row in rows]
    (output / ROWS).write_text("".join(lines), encoding="utf-8")
    return {}


def read_texts(calibration: dict[str, Any], file: str, tokenizer: Any) -> list[str]:
    """Return the texts of a file."""
    column = calibration["column"]
    path = Path(file)
    form = form_of(path, "recipe key quantization.calibration.dataset")
    with raise_as(
        StageError,
        "the calibration file cannot be read",
        file,
        f"give a file in UTF-8 that ends {READ}",
        errors=(OSError, UntrustedLinesError),
    ):
        rows = list(read_rows(path, form))
    return [as_text(row, form, column, tokenizer, f"{file}, line {number}") for number, row in rows]


def as_text(row: Any, form: str, column: str, tokenizer: Any, where: str) -> str:
    """Return a row's text, or its messages in the chat template."""
    try:
        value = parse_row(row, form, column)
        if isinstance(value, str):
            return value
        if tokenizer.chat_template:
            return str(tokenizer.apply_chat_template(value, tokenize=False))
        return "\n".join(str(message["content"]) for message in value)
    except Exception as error:  # a template may raise any of Python
        raise StageError(
            f"the calibration row cannot be used: {error}",
            where=where,
            hint=f"recipe key quantization.calibration.column names its text: '{column}'",
        ) from error


def block_facts(blocks: list[list[int]]) -> dict[str, Any]:
    """Return facts for the stage's record."""
    return {
        "calibration_blocks": len(blocks),
        "calibration_tokens": sum(map(len, blocks)),
        "calibration_digest": hashlib.sha256(json.dumps(blocks).encode()).hexdigest(),
    }
