"""Rejection of ignore lists whose expressions take exponential time on a checkpoint's names.

`(.*)*x(.*)*y$` does not finish on a name of forty characters in Python's `re`, which prepare,
llm-compressor and vLLM use. A child process with a CPU limit tries the expressions first.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pipeline.core.errors import UsageError
from recipes.ignored_modules import to_expression

CPU_LIMIT_S = 2  # CPU time, which does not depend on other load
WALL_TIMEOUT_S = 30.0  # for a process that is not scheduled

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


def check_expressions(
    ignore: Sequence[str],
    modules: Iterable[str],
    where: str = "recipe key quantization.ignore",
) -> None:
    """Match every expression against every module, with a CPU time limit.

    Raises:
        UsageError: one takes longer, or is no expression; the message has it.
    """
    expressions = tuple(e for word in ignore if (e := to_expression(word)) is not None)
    if expressions:
        _check(expressions, tuple(modules), where)


@lru_cache(maxsize=16)
def _check(expressions: tuple[str, ...], modules: tuple[str, ...], where: str) -> None:
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
        started = (error.stdout or b"").decode(errors="replace").split("\0")[:-1]
        slow = started[-1] if started else expressions[0]
        raise UsageError(
            f"{slow[:80]!r} takes more than {CPU_LIMIT_S} s to match this checkpoint's "
            f"{len(modules)} modules, or is no regular expression",
            where=where,
            hint="write it without a repetition inside a repetition, or name the modules",
        ) from error
