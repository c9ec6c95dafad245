"""The stand-in for a model server, on a Unix socket as ours are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STAND_IN = Path(__file__).parents[1] / "unit" / "model_server_stand_in.py"


@contextmanager
def answering(path: Path) -> Iterator[Path]:
    """That server, until the end of the block; gives the path of its socket."""
    environment = {**os.environ, "STAND_IN": "drafts"}
    words = ["-m", "x", "--model", "m", "--served-model-name", "m", "--host", "h", "--uds"]
    command = [sys.executable, str(STAND_IN), *words, str(path)]
    with subprocess.Popen(command, env=environment) as server:
        try:
            while not path.exists():
                assert server.poll() is None
            yield path
        finally:
            server.kill()
