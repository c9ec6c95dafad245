"""Lists of modules: names, shell patterns, and `re:` expressions.

RE2 matches untrusted expressions in linear time, where Python's `re` may take years. It refuses
lookahead, backreferences and more than 1,000 repetitions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

try:
    import re2
except ModuleNotFoundError as error:
    if error.name != "re2":
        raise
    re2 = None  # in a worker's environment, whose lists the command has compiled

_ANY = {"*": ".*", "?": "."}
# Every module of a checkpoint is compared with all of them.
MAX_WORDS = 100_000
MAX_EXPRESSIONS = 1_000
MAX_CHARACTERS = 50_000


def is_listed(module: str, words: Sequence[str]) -> bool:
    """Return whether a list names the module, or an expression of it matches."""
    names, expressions = _compile_all(tuple(words))
    if module in names:
        return True
    text = module.encode(errors="replace").decode()  # RE2 takes no halves of a surrogate pair
    return any(expression.match(text) for expression in expressions)


def to_expression(word: str) -> str | None:
    """Return an entry's regular expression; None for a plain name."""
    if word.startswith("re:"):
        return word.removeprefix("re:")
    return _translate(word) if any(character in word for character in "*?[") else None


def check_patterns(words: list[str]) -> list[str]:
    """Return the words; ValueError for too many, or one that RE2 refuses."""
    expressions = [translated for word in words if (translated := to_expression(word)) is not None]
    for number, limit, what in (
        (len(words), MAX_WORDS, "entries"),
        (len(expressions), MAX_EXPRESSIONS, "expressions and patterns"),
        (sum(map(len, expressions)), MAX_CHARACTERS, "characters of expressions and patterns"),
    ):
        if number > limit:
            raise ValueError(f"{number:,} {what}, and {limit:,} are the most")
    for expression in expressions:
        _compile(expression)
    return words


def _translate(pattern: str) -> str:
    """Return an expression; `fnmatch`'s has atomic groups, which RE2 lacks."""
    parts = re.findall(r"\[!?\]?[^\]]*\]|.", pattern, re.DOTALL)
    return "".join(_ANY.get(part) or _translate_set(part) for part in parts) + "$"


def _translate_set(part: str) -> str:
    if len(part) == 1:
        return re.escape(part)
    negated = part.startswith("[!")
    inside = part[1 + negated : -1].translate({ord(letter): f"\\{letter}" for letter in r"\[]^"})
    return f"[{'^' * negated}{inside}]"


def _compile(expression: str) -> Any:
    if re2 is None:
        return re.compile(expression)
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        if re.search(r"\{\d{5}", expression):  # which RE2 takes for plain text
            raise ValueError("more than 1,000 repetitions")
        # Python's own name of the end, which RE2 writes in lower case.
        return re2.compile(re.sub(r"\\Z$", r"\\z", expression), options)
    except (re2.error, ValueError) as error:
        (reason, *_) = error.args
        told = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(
            f"{expression[:80]!r} is no expression that RE2 reads: {told[:80]}"
        ) from error


@lru_cache(maxsize=64)
def _compile_all(words: tuple[str, ...]) -> tuple[frozenset[str], tuple[Any, ...]]:
    by_word = {word: to_expression(word) for word in words}
    return (
        frozenset(word for word, expression in by_word.items() if expression is None),
        tuple(_compile(expression) for expression in by_word.values() if expression is not None),
    )
