"""A worker's protocol: ``python worker_protocol.py MODULE SPEC.json RESULT.json OUTPUT``.

It calls the module's `run` in a managed environment, with progress events. A PrepareError is
returned in the result file. With ``--stay DESCRIPTOR`` it answers one request after another,
each a message on that Unix socket, until the socket closes. At module level only the standard
library can be imported.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import json
import os
import resource
import socket
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prepare.errors import PrepareError


STAY = "--stay"
MAX_REQUEST_BYTES = 2**16
MAX_LOCKS = 250  # that Linux passes in a message
RESET_PEAK = "5"  # of /proc/self/clear_refs


def children_peak() -> int:
    """Return the largest resident set of ended children, in KiB."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def peak_memory_bytes(children_before: int = 0) -> int:
    """Return this process's or a child's largest resident set.

    getrusage would include the starting process's memory. Children of an earlier request count only
    in `children_before`, as their peak in KiB.
    """
    status = Path("/proc/self/status").read_text()
    (own,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    children = children_peak()
    return max(own, children if children > children_before else 0) * 1024  # both are in KiB


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


def call_worker(worker: str, spec_path: Path, result_path: Path, output: Path) -> bool:
    """Run a worker; return whether it has a result.

    Its module is imported after plugin registration, as it may be in a plugin.
    """
    from prepare.errors import PrepareError
    from prepare.events import worker_progress
    from prepare.plugins import PLUGINS, use_given

    children_before = children_peak()
    answer: dict[str, Any]
    try:
        spec = json.loads(spec_path.read_text())
        for plugin in spec.pop(PLUGINS, ()):
            use_given(plugin)
        run = importlib.import_module(worker).run
        result = run(spec, worker_progress(), output)
        answer = {"ok": True, "result": result}
    except PrepareError as error:
        answer = {"ok": False, "error": error.to_dict()}
    except Exception as error:
        traceback.print_exc()
        answer = {"ok": False, "error": explain(error).to_dict()}
    answer["peak_memory_bytes"] = peak_memory_bytes(children_before)
    result_path.write_text(json.dumps(answer))
    return bool(answer["ok"])


def stay(descriptor: int) -> None:
    """Answer requests until the socket closes.

    A request names worker, spec, result, output and log, and comes with the locks that its stage
    holds: they stay locked until it is answered, even if prepare is killed. Or it is a `warm` one,
    whose module is made ready meanwhile.
    """
    from prepare.events import ANSWERED, TAKEN, worker_progress

    events = worker_progress()
    channel = socket.socket(fileno=descriptor)
    while True:
        message, locks, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, MAX_LOCKS)
        if not message:
            return
        request = json.loads(message)
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        is_warm = "warm" in request
        if is_warm:
            warm(request["warm"])
        else:
            events.write({"event": TAKEN})
            reset_peak_memory()
            paths = (Path(request[name]) for name in ("spec", "result", "output"))
            call_worker(request["worker"], *paths)
        sys.stdout.flush()
        sys.stderr.flush()
        for lock in locks:
            os.close(lock)
        if not is_warm:
            events.write({"event": ANSWERED})


def warm(module: str) -> None:
    """Import what the worker will need; it meets any error itself."""
    with contextlib.suppress(Exception):
        importlib.import_module(module).warm()


def reset_peak_memory() -> None:
    """Forget the peak of earlier requests, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(RESET_PEAK)


def main() -> None:
    """Run the worker, or stay."""
    from prepare.redaction import redact_streams

    redact_streams()
    is_ok = True
    if sys.argv[1] == STAY:
        stay(int(sys.argv[2]))
    else:
        sys.argv.pop(0)  # the script's own name: the worker's takes its place
        is_ok = call_worker(sys.argv[0], *(Path(argument) for argument in sys.argv[1:4]))
    # Libraries leave threads behind that would keep the interpreter from ending.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if is_ok else 1)


if __name__ == "__main__":
    # The script's own folder would shadow modules by its files' names; PYTHONSAFEPATH (Python 3.11)
    # leaves it out.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)
    register_packages(Path(__file__).resolve().parents[1])
    main()
