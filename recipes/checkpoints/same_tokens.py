"""Comparison of what reads a checkpoint's text: its file, a library's class, a model server.

Standard library only at module level, for the quantizers' environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prepare.errors import StageError
from recipes.checkpoints.folder import CONFIG
from recipes.checkpoints.tokenizer_file import (
    CURE,
    OWN_CLASS_CURE,
    PUBLISHED,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TYPES_BY_OWN_CLASS,
)
from recipes.checkpoints.weight_files import read_json

# Without spaces at the start or before a full stop, which classes may add or remove.
SENTENCES = (
    "The old library of Vienna stood in a corner of Market Square, and 12 people came to read it.",
    "def mean(values):\n    total = sum(values)\n    return total / len(values)  # of all values",
    "This  line  has  pairs  of  spaces,\tand the next begins with two:\n  - one\n\n  - two",
)
# Vocabularies without these letters lose them rightly, so only the ids are compared.
SCRIPTS = (
    "These are others: Привет, мир! Καλημέρα κόσμε, 你好世界 こんにちは "
    "مرحبا بالعالم नमस्ते 안녕하세요 naïve 🙂 and no more",
)
OPENING = 4  # ids at a text's start that may differ, since a class may put a space before it
MAX_MARKS = 8  # special tokens that are compared
SHOWN = 6  # ids of a message


@dataclass(frozen=True)
class TokenReader:
    """What turns text into ids, without those that a prompt begins with, and ids into text."""

    name: str  # for messages
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]


def reader_of(tokenizer: Any) -> TokenReader:
    """Return how a class of transformers reads."""
    return TokenReader(
        f"the class '{type(tokenizer).__name__}' of transformers",
        lambda text: list(tokenizer(text, add_special_tokens=False).input_ids),
        lambda ids: str(tokenizer.decode(ids)),
    )


def marked_text(marks: Sequence[str]) -> str:
    """Return a text with these special tokens in it."""
    return "Here are marks: " + " and ".join(f"one{mark}two" for mark in marks)


def find_difference(known: TokenReader, other: TokenReader, marks: Mapping[str, int]) -> str:
    """Return how `other` reads text otherwise than `known`, or ''.

    `marks` are special tokens, whose ids alone count in a text with them.
    """
    for text in (*SENTENCES, *SCRIPTS):
        ids = other.encode(text)
        expected = known.encode(text)
        if differing := _different_ids(expected, ids):
            wrong, right = differing
            return f"{other.name} reads {wrong} in {text[:40]!r}, where {known.name} gives {right}"
        decoded = other.decode(ids)
        if text in SENTENCES and _is_altered(text, decoded, known.decode(expected)):
            return f"{other.name} turns {text[-40:]!r} into {' '.join(decoded.split())[-40:]!r}"
    chosen = dict(list(marks.items())[:MAX_MARKS])
    special = set(chosen.values())
    text = marked_text(list(chosen))
    read = [number for number in other.encode(text) if number in special]
    expected = [number for number in known.encode(text) if number in special]
    if read != expected:
        return f"{other.name} reads the special tokens {read} where {known.name} reads {expected}"
    return ""


def _is_altered(text: str, decoded: str, as_known: str) -> bool:
    """Return whether a decoded text lacks words or spaces, or has other letters than the file's.

    A vocabulary without capitals, or with few words, alters letters by itself, and may part words.
    The first words do not count, since a class may join them to what is before.
    """
    written = text.split()[1:]
    words = decoded.split()[1:]
    known = as_known.split()[1:]
    if words == written:
        return False
    return min(len(words), len(known)) < len(written) or "".join(words) != "".join(known)


def _different_ids(expected: Sequence[int], ids: Sequence[int]) -> tuple[list[int], ...]:
    """Return both sides' ids at a difference behind the opening, or ()."""
    compared = min(len(expected), len(ids)) - OPENING
    is_close = abs(len(expected) - len(ids)) <= OPENING
    if is_close and compared > 0 and list(ids[-compared:]) == list(expected[-compared:]):
        return ()
    places = range(1, min(len(expected), len(ids)) + 1)
    end = next((place for place in places if ids[-place] != expected[-place]), 1)
    return list(ids[-end:])[:SHOWN], list(expected[-end:])[:SHOWN]


def check_same_tokens(tokenizer: Any, folder: Path) -> None:
    """Check that the class reads text as a folder's tokenizer.json says, and keeps its spaces.

    StageError: it gives other ids, or text does not survive encoding and decoding.
    """
    file = folder / TOKENIZER
    if not file.is_file():
        return
    from tokenizers import Tokenizer

    try:
        as_written = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises the base class alone
        raise StageError(
            f"the tokenizer cannot be loaded: {error}",
            where=str(file),
            hint=PUBLISHED,
        ) from error
    known = TokenReader(
        TOKENIZER,
        lambda text: list(as_written.encode(text, add_special_tokens=False).ids),
        lambda ids: str(as_written.decode(ids, skip_special_tokens=False)),
    )
    added = as_written.get_added_tokens_decoder()
    marks = {token.content: number for number, token in added.items() if token.special}
    if fault := find_difference(known, reader_of(tokenizer), marks):
        raise StageError(
            f"{fault}: the model would see other text than it was trained on",
            where=f"{folder / TOKENIZER_CONFIG}, key tokenizer_class; {file}",
            hint=cure_in(folder),
        )


def cure_in(folder: Path) -> str:
    """Return what makes the libraries read a folder's tokenizer.json as it is."""
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    return OWN_CLASS_CURE if config.get("model_type") in TYPES_BY_OWN_CLASS else CURE
