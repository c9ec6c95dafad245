"""A foreign endpoint may answer anything where counters are read: the load goes on without."""

from __future__ import annotations

import gzip
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_server import Answer, serve

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from prepare.process_environment import server_environment
from recipes.accelerator import Accelerator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
READ = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from eval_gates.engine_metrics import open_session, read_counters

async def read():
    async with open_session(None) as session:
        return await read_counters(session, sys.argv[2], {"drafts": "hits"})

print(asyncio.run(read()))
"""
HITS = b"hits 3\n"
ANSWERS = {
    "sound": Answer(HITS),
    "endless": Answer(HITS * 10_000, is_endless=True),
    "packed": Answer(gzip.compress(HITS), headers={"Content-Encoding": "gzip"}),
    "infinite": Answer(b"hits 1e999\n"),
    "negative": Answer(b"hits -1\n"),
    "no_number": Answer(b"hits 1e\n"),
    "no_text": Answer(b"hits \xff\n"),
    "elsewhere": Answer(status=302, headers={"Location": "/sound/metrics"}),
}


@pytest.fixture
def url() -> Iterator[str]:
    with serve(ANSWERS) as found:
        yield found.url


@pytest.mark.parametrize("name", ANSWERS)
def test_what_an_endpoint_says_of_itself(url: str, name: str) -> None:
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
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
