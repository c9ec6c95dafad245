"""Facts from a server's log: failure reason, hint, report data."""

from __future__ import annotations

import re
from pathlib import Path

from recipes.engines import Engine

_NOISE = re.compile(
    r"^(\([\w-]+ pid=\d+\)\s*)?(ERROR|CRITICAL|WARNING|INFO)?\s*[\d :.-]*(\[[^\]]*\])?\s*"
)
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Killed)\b.*: \S|^.*error: ")


def find_reason(log: Path, engine: Engine) -> str:
    """Return the first line with an exception that echoes no other.

    Without one, return the first echo, or the last line.
    """
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    texts = [_NOISE.sub("", line).strip() for line in lines]
    named = [number for number, text in enumerate(texts) if _EXCEPTION.match(text)]
    telling = [n for n in named if not any(words in texts[n] for words in engine.echoes)]
    if not named:
        return lines[-1].strip()[:500] if lines else ""
    first = (telling or named)[0]
    # pydantic describes the fault in the next lines: a key, then the fault.
    is_pydantic = re.search(r"\d+ validation errors? for", texts[first]) is not None
    reason = " ".join(texts[first : first + 3]) if is_pydantic else texts[first]
    return reason.partition(" [type=")[0][:500]


# Hints for every engine, after the engine's own.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"space in /dev/shm",
        "give the container more shared memory: --shm-size 1g of podman and docker run, in "
        "Kubernetes an emptyDir of medium Memory at /dev/shm",
    ),
    (
        r"out of memory|kv cache (blocks|space|memory|size)|memory",
        "reduce the server's memory: a profile with a smaller max-model-len, max-num-seqs "
        "or KV cache, more tensor parallelism, or a machine with more memory",
    ),
    (
        r"not supported|unsupported",
        "this engine version does not serve this architecture; see its supported models",
    ),
    (r"address already in use", "another program took the port; run the command again"),
)


def hint_for(reason: str, engine: Engine) -> str:
    """Return a hint for a server's failure reason."""
    for words, hint in (*engine.hints, *_HINTS):
        if re.search(words, reason, re.IGNORECASE):
            return hint
    return "read the log; a profile (--profile PATH) can change the engine's arguments"


def engine_facts(log: Path, engine: Engine, start: int = 0) -> dict[str, str]:
    """Return report facts from the engine's log, from that byte on: KV cache size, kernels."""
    return engine.facts_in(
        log.read_bytes()[start:].decode(errors="replace") if log.is_file() else ""
    )
