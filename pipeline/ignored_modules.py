"""Which modules a recipe's ignore list means; apart, since workers ask it too."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase


def is_ignored(module: str, ignore: list[str]) -> bool:
    """Whether the ignore list means the module: by name, pattern, or `re:` expression.

    llm-compressor knows names and `re:` expressions; a recipe's shell patterns are made into
    expressions before it hears of them (:mod:`pipeline.inspection.ignored`).
    """
    return any(
        re.match(word.removeprefix("re:"), module) is not None
        if word.startswith("re:")
        else fnmatchcase(module, word)
        for word in ignore
    )
