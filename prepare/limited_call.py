"""Calls in a forked process with limits of CPU time and memory.

Standard library only, for workers.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from prepare.errors import PrepareError, from_dict
from prepare.supervisor import die_with_parent

CPU_SECONDS = 10.0
MEMORY_BYTES = 1 << 30
_WALL_SECONDS = 120.0  # of a process that waits
_MAX_RESULT_BYTES = 1 << 26
Value = TypeVar("Value")


class CallError(Exception):
    """A call exceeded a limit, ended its process, or raised; then with the class and the text."""


def call_limited(
    call: Callable[[], Any], *, seconds: float | None = None, memory_bytes: int = MEMORY_BYTES
) -> Any:
    """Return the call's result as JSON has it.

    `memory_bytes` are beyond this process's. PrepareError, ImportError: as raised.
    CallError: a limit was exceeded, or any other exception.
    """
    seconds = CPU_SECONDS if seconds is None else seconds
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(call, writer, ceil(seconds), memory_bytes)
    os.close(writer)
    try:
        content = _read(reader)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)  # which has answered, or will not
        os.waitpid(child, 0)
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CallError(f"it takes more than {seconds:g} s or too much memory") from error
    if "error" in answer:
        raise from_dict(answer["error"])
    if "missing" in answer:
        raise ImportError(answer["missing"])
    if "raised" in answer:
        raise CallError(answer["raised"])
    return answer["value"]


def grade_all(calls: Sequence[Callable[[], Value]], failed: Value) -> list[Value]:
    """Return the results; `failed` for calls that fail."""
    try:
        values: list[Value] = call_limited(lambda: [call() for call in calls])
    except CallError:
        if len(calls) == 1:
            return [failed]
        return [grade_all([call], failed)[0] for call in calls]
    return values


def _answer(call: Callable[[], Any], writer: int, seconds: int, memory_bytes: int) -> NoReturn:
    try:
        die_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        room = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            answer = {"value": call()}
        except PrepareError as error:
            answer = {"error": error.to_dict()}
        except ImportError as error:  # no fault of the call
            answer = {"missing": str(error)}
        except Exception as error:
            answer = {"raised": f"{type(error).__name__}: {error}"[:1000]}
        content = json.dumps(answer).encode()
        while content:
            content = content[os.write(writer, content) :]
    finally:
        os._exit(0)


def _read(reader: int) -> bytes:
    content = b""
    end = time.monotonic() + _WALL_SECONDS
    while len(content) < _MAX_RESULT_BYTES:
        ready, _, _ = select.select([reader], [], [], max(0.0, end - time.monotonic()))
        chunk = os.read(reader, 1 << 16) if ready else b""
        if not chunk:
            return content
        content += chunk
    return b""
