"""Which modules a recipe's ignore list means; apart, since workers ask it too."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase


def is_ignored(module: str, ignore: list[str]) -> bool:
    """Whether the ignore list means the module: by name, pattern, or `re:` expression.

    llm-compressor knows names and `re:` expressions; a shell pattern is no word to it, so that it
    quantizes the layer all the same, and verification then says so.
    """
    return any(
        re.match(word.removeprefix("re:"), module) is not None
        if word.startswith("re:")
        else fnmatchcase(module, word)
        for word in ignore
    )
