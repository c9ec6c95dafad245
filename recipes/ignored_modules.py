"""Interpretation of a recipe's ignore list; a separate module, since workers import it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache


def is_ignored(module: str, ignore: Sequence[str]) -> bool:
    """Return whether the ignore list matches the module by name, glob or `re:` expression.

    llm-compressor supports names and `re:` expressions; globs are converted first
    (:mod:`pipeline.inspection.unquantized_modules`).
    """
    names, expressions = _compile(tuple(ignore))
    return module in names or any(expression.match(module) for expression in expressions)


def to_expression(word: str) -> str | None:
    """Return the regular expression of an entry; None for a plain name."""
    if word.startswith("re:"):
        return word.removeprefix("re:")
    return translate(word) if any(character in word for character in "*?[") else None


@lru_cache(maxsize=64)
def _compile(ignore: tuple[str, ...]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    by_word = {word: to_expression(word) for word in ignore}
    return (
        frozenset(word for word, expression in by_word.items() if expression is None),
        tuple(re.compile(each) for each in by_word.values() if each is not None),
    )
