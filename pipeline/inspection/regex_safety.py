"""Refuses expressions of an ignore list that take for ever on a checkpoint's module names.

`(.*)*x(.*)*y$` takes longer than the universe on a name of forty letters, here, in llm-compressor
and in vLLM, all of which match by Python's `re`. So that very engine tries them first, in a
process that can be ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pipeline.checkpoint.ignored_modules import to_expression
from pipeline.core.errors import UsageError

CPU_LIMIT_S = 2  # of a processor: another's load refuses nobody's list
WALL_TIMEOUT_S = 30.0  # for a process that gets no processor

_TRY = """
import json, re, resource, sys
words, names, limit = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
for word in words:
    print(word, end="\\0", flush=True)
    match = re.compile(word).match
    for name in names:
        match(name)
"""


def check_expressions(ignore: Sequence[str], modules: Iterable[str]) -> None:
    """Match every expression of the list against every module, for 2 s of a processor at most.

    Raises:
        UsageError: they take longer; the one that did is named.
    """
    tried = tuple(word for each in ignore if (word := to_expression(each)) is not None)
    if tried:
        _check(tried, tuple(modules))


@lru_cache(maxsize=16)
def _check(expressions: tuple[str, ...], modules: tuple[str, ...]) -> None:
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRY],
            input=json.dumps([expressions, modules, CPU_LIMIT_S]).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=WALL_TIMEOUT_S,
            check=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        begun = (error.stdout or b"").decode(errors="replace").split("\0")[:-1]
        named = begun[-1] if begun else expressions[0]
        raise UsageError(
            f"the ignore list takes more than {CPU_LIMIT_S} s to match this checkpoint's "
            f"{len(modules)} modules; it stood at {named[:80]!r}",
            where="recipe key quantization.ignore",
            hint="write it without a repetition inside a repetition, or name the modules",
        ) from error
