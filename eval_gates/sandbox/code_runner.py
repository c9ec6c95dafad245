"""Runs the model's code and answers calls; the grader checks all data from this process."""

from __future__ import annotations

import builtins
import resource
import sys
from itertools import islice
from os import _exit

from eval_gates.sandbox.framing import read_message, write_message
from eval_gates.sandbox.value_codec import decode, encode, is_iterator

TYPE_CHECKING = False  # importing typing would slow down each start in bubblewrap
if TYPE_CHECKING:
    from typing import Any, NoReturn

MAX_FILE_BYTES = 4 * 2**20  # also limits the recorded standard error
_OPEN_FILES = 64
_WAITING_SIGNALS = 128
_MAX_TRACE_CHARACTERS = 2_000
_BUILTIN = {
    kind: name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}


def serve(requests: int, answers: int, orders: dict[str, Any]) -> NoReturn:
    """Read the solution, run it, then answer calls.

    Args:
        requests: ``{"solution": str, "entry_point": str}`` first; then ``{"arguments": [...],
            "named": {...}}`` per call, or ``{"of": int, "most": int}`` for the next items of a
            returned iterator.
        answers: ``{"ready": true}``; then per call ``{"value": ...}``, or ``{"iterator": int}``,
            and ``{"items": [...], "ended": bool}`` for its items; with ``"raised": {"kinds": [str],
            "text": str, "trace": str}`` after an exception.
        orders: `seconds`, `memory_bytes`, `processes`, `packages` (a folder).
    """
    sys.argv = [""]
    sys.path[:] = [*(p for p in sys.path[1:] if p), orders["packages"]]
    limit_resources(orders)
    task = read_message(requests)
    namespace: dict[str, Any] = {"__name__": "program"}
    function: Any = None
    iterators: list[Any] = []
    try:
        exec(compile(task["solution"], "<program>", "exec"), namespace)  # noqa: S102
        if task["entry_point"] not in namespace:
            raise NameError(f"name {task['entry_point']!r} is not defined")
        function = namespace[task["entry_point"]]
    except BaseException as error:
        answer: Any = {"raised": _describe(error)}
    else:
        answer = {"ready": True}
    while True:
        _send(answers, answer)
        try:
            request = read_message(requests)
        except EOFError:
            _exit(0)
        if "of" in request:
            answer = _items(iterators[request["of"]], request["most"])
        else:
            answer = _answer(function, request, iterators)


def limit_resources(orders: dict[str, Any]) -> None:
    """Limit CPU time, memory, processes and files."""
    for kind, amount in (
        (resource.RLIMIT_CPU, orders["seconds"]),
        (resource.RLIMIT_AS, orders["memory_bytes"]),
        (resource.RLIMIT_NPROC, orders["processes"]),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, _WAITING_SIGNALS),
    ):
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            amount = min(amount, ceiling)
        hard = amount + 1 if kind == resource.RLIMIT_CPU else amount
        resource.setrlimit(kind, (amount, hard if ceiling == -1 else min(hard, ceiling)))


def _answer(function: Any, request: dict[str, Any], iterators: list[Any]) -> dict[str, Any]:
    try:
        arguments = [decode(item) for item in request["arguments"]]
        named = {name: decode(item) for name, item in request["named"].items()}
        value = function(*arguments, **named)
        if not is_iterator(value):
            return {"value": encode(value)}
        iterators.append(value)
        return {"iterator": len(iterators) - 1}
    except BaseException as error:
        return {"raised": _describe(error)}


def _items(iterator: Any, most: int) -> dict[str, Any]:
    items: list[Any] = []
    try:
        items.extend(encode(item) for item in islice(iterator, most))
    except BaseException as error:
        return {"items": items, "ended": True, "raised": _describe(error)}
    return {"items": items, "ended": len(items) < most}


def _send(answers: int, answer: dict[str, Any]) -> None:
    try:
        write_message(answers, answer)
    except OSError:  # the grader has ended
        _exit(0)
    except BaseException as error:  # the answer cannot be encoded: nested too deeply, too large
        write_message(answers, {"raised": _describe(error)})


def _describe(error: BaseException) -> dict[str, Any]:
    # By identity, and without the class's own attributes: it may have any name.
    kinds = [_BUILTIN[kind] for kind in type.mro(type(error)) if kind in _BUILTIN]
    if isinstance(error, MemoryError):
        return {"kinds": kinds, "text": "", "trace": "MemoryError"}
    try:
        import traceback

        text, trace = str(error), "".join(traceback.format_exception(error, limit=-8))
    except BaseException as second:  # a solution's own class, or no memory
        name = type.__dict__["__name__"].__get__(type(error))
        text = trace = f"{name} (and {type(second).__name__} on describing it)"
    return {
        "kinds": kinds,
        "text": text[:_MAX_TRACE_CHARACTERS],
        "trace": trace[-_MAX_TRACE_CHARACTERS:],
    }
