"""Runs one of our readers on something hostile, in a process whose time and memory count."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_RUN = """
import json, re, sys, time
module, _, function = sys.argv[1].partition(":")
from importlib import import_module
from pathlib import Path
sys.path[:0] = ["tests", "tests/unit", "tests/unit/prepare"]
read = getattr(import_module(module), function)
from prepare.errors import PrepareError
started, error = time.process_time(), None
try:
    read(Path(sys.argv[2]))
except PrepareError as caught:
    error = f"{type(caught).__name__}: {caught}"
# Not ru_maxrss, which a new process takes over from the one that started it.
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
print(json.dumps({"error": error, "seconds": time.process_time() - started, "mib": peak}))
"""


@dataclass(frozen=True)
class Refusal:
    """How a reader ended: the error's class and words, seconds of CPU, and peak MiB."""

    error: str | None
    seconds: float
    mib: float


def refusal(reader: str, path: Path, timeout: float = 110) -> Refusal:
    """What `module:function` does with the path; anything but a PrepareError fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, reader, str(path)],
        capture_output=True,
        timeout=timeout,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Refusal(**json.loads(done.stdout))
