"""Somebody's endpoint may answer anything where counters are read: the load goes on without."""

from __future__ import annotations

import gzip
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.core.events import Silent
from pipeline.core.process_environment import server_environment
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
READ = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from pipeline.workers.engine_metrics import Watch
print(asyncio.run(Watch(sys.argv[2], {"drafts": "hits"}).counters()))
"""
ANSWERS = {
    "sound": b"hits 3\n",
    "endless": b"",
    "packed": gzip.compress(b"hits 3\n"),
    "infinite": b"hits 1e999\n",
    "negative": b"hits -1\n",
    "no_number": b"hits 1e\n",
    "no_text": b"hits \xff\n",
}


class Hostile(BaseHTTPRequestHandler):
    """Answers what the first part of the path names."""

    def do_GET(self) -> None:
        name = self.path.split("/")[1]
        self.send_response(302 if name == "elsewhere" else 200)
        if name == "elsewhere":
            self.send_header("Location", "/sound/metrics")
        if name == "packed":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        try:
            while name == "endless":
                self.wfile.write(b"hits 3\n" * 10_000)
            self.wfile.write(ANSWERS.get(name, b""))
        except OSError:
            pass  # the reader has gone, as it should

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("name", [*ANSWERS, "elsewhere"])
def test_what_an_endpoint_says_of_itself(url: str, name: str) -> None:
    python = ensure("serve", Accelerator.CPU, load_settings(), Silent()).python
    ran = subprocess.run(
        [str(python), "-c", READ, str(ROOT), f"{url}/{name}"],
        env=server_environment(os.environ, {}, python=python),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.strip() == ("{'drafts': 3}" if name == "sound" else "None")
