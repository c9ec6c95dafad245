"""A worker's protocol: spec JSON in, result JSON out, progress events.

A PrepareError is returned in the result file.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.core.errors import PrepareError, StoreError, WorkerError
from pipeline.core.events import Progress, worker_progress
from pipeline.core.plugins import PLUGINS, use_given
from pipeline.core.redaction import redact_streams

Run = Callable[[dict[str, Any], Progress, Path], dict[str, Any]]


def peak_memory_bytes() -> int:
    """Return this process's or a child's largest resident set.

    getrusage would include the starting process's memory.
    """
    status = Path("/proc/self/status").read_text()
    (own,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own, children) * 1024  # Linux counts both in KiB


def versions_of(*libraries: str) -> dict[str, str]:
    """Return installed versions of libraries."""
    return {name: version(name) for name in libraries}


def explain(error: Exception) -> PrepareError:
    """Return an unexpected exception as a PrepareError."""
    # Libraries in other languages have the system's error in their message only.
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in str(error):
        return StoreError(
            "the disk is full",
            hint="free some space, or name another place with --store DIR; "
            "finished stages are kept and will be reused",
        )
    is_damaged = isinstance(error, ImportError)
    return WorkerError(
        f"{type(error).__name__}: {str(error)[:2000]}",
        hint="its environment may be damaged: prepare doctor --build --force" if is_damaged else "",
    )


def main(load: Callable[[], Run]) -> None:
    """Run a worker's `run` by the arguments ``SPEC.json RESULT.json OUTPUT_FOLDER``.

    Loading follows plugin registration, as the worker may be in a plugin.
    """
    redact_streams()
    spec_path, result_path, output = (Path(argument) for argument in sys.argv[1:4])
    answer: dict[str, Any]
    try:
        spec = json.loads(spec_path.read_text())
        for plugin in spec.pop(PLUGINS, ()):
            use_given(plugin)
        result = load()(spec, worker_progress(), output)
        answer = {"ok": True, "result": result}
    except PrepareError as error:
        answer = {"ok": False, "error": error.to_dict()}
    except Exception as error:
        traceback.print_exc()
        answer = {"ok": False, "error": explain(error).to_dict()}
    answer["peak_memory_bytes"] = peak_memory_bytes()
    result_path.write_text(json.dumps(answer))
    # Libraries leave threads behind that would keep the interpreter from ending.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if answer["ok"] else 1)
