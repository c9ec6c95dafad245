"""A worker's protocol: ``python worker_protocol.py MODULE SPEC.json RESULT.json OUTPUT``.

It calls the module's `run` in a managed environment, with progress events. A PrepareError is
returned in the result file. At module level only the standard library can be imported.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import json
import os
import resource
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prepare.errors import PrepareError


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
    from prepare.errors import StoreError, WorkerError

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


def register_packages(root: Path) -> None:
    """Make only our packages importable from `root`: our other site-packages would conflict."""
    for name in ("prepare", "pipeline", "recipes", "eval_gates"):
        folder = root / name
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{folder} is not a package")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def main() -> None:
    """Run the worker.

    Its module is imported after plugin registration, as it may be in a plugin.
    """
    from prepare.errors import PrepareError
    from prepare.events import worker_progress
    from prepare.plugins import PLUGINS, use_given
    from prepare.redaction import redact_streams

    redact_streams()
    sys.argv.pop(0)  # the script's own name: the worker's takes its place
    spec_path, result_path, output = (Path(argument) for argument in sys.argv[1:4])
    answer: dict[str, Any]
    try:
        spec = json.loads(spec_path.read_text())
        for plugin in spec.pop(PLUGINS, ()):
            use_given(plugin)
        run = importlib.import_module(sys.argv[0]).run
        result = run(spec, worker_progress(), output)
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


if __name__ == "__main__":
    # The script's own folder would shadow modules by its files' names; PYTHONSAFEPATH (Python 3.11)
    # leaves it out.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)
    register_packages(Path(__file__).resolve().parents[1])
    main()
