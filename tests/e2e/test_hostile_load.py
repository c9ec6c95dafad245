"""A foreign endpoint may answer a load with anything: it is a failed request, and goes nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_server import Answer, HostileServer, serve

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from prepare.process_environment import server_environment
from recipes.accelerator import Accelerator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
# The project's client: each answer's name, outcome and peak.
SEND = """
import asyncio, json, resource, sys
sys.path.insert(0, sys.argv[1])
from prepare.errors import ServingError
from eval_gates.speed.load_client import LoadClient, LoadTarget
from eval_gates.speed.load_prompts import Prompt

def send(name):
    client = LoadClient(at_once=1, warmup_s=0.0)
    target = LoadTarget(f"{sys.argv[2]}/{name}", "m", None, {})
    try:
        load = client.measure(target, [Prompt("secret", 1, 2)])["requests"]
    except ServingError as error:
        return False, 0, error.message
    return True, load["output_tokens"][0], ""

print("BEGIN")
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in sys.argv[3:]:
    print(json.dumps([name, *send(name)]), flush=True)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start))
"""


def chunks(usage: object) -> bytes:
    """Two tokens, and what the server counts."""
    lines = [{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}, {"usage": usage}]
    return b"".join(b"data: %s\n\n" % json.dumps(line).encode() for line in lines)


ANSWERS = {
    "sound": Answer(chunks({"completion_tokens": 2, "prompt_tokens": 1})),
    "counted_in_text": Answer(chunks({"completion_tokens": "two", "prompt_tokens": 1})),
    "nested": Answer(b"data: " + b"[" * 100_000 + b"\n\n"),
    "no_text": Answer(b"data: \xff\n\n"),
    "packed": Answer(
        zlib.compress(b"data: " + bytes(100 * 2**20)), headers={"Content-Encoding": "deflate"}
    ),
    "endless": Answer(b'data: {"choices": [{"text": "a"}]}\n\n' * 1000, is_endless=True),
    "one_line": Answer(b"data: " + b"a" * 100_000, is_endless=True),
    "uncounted": Answer(b'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n'),
    "failing": Answer(b'data: {"error": {"message": "out of memory"}}\n\n'),
    "longer": Answer(chunks({"completion_tokens": 3, "prompt_tokens": 1})),
    "elsewhere": Answer(status=307, headers={"Location": "/other/v1/completions"}),
}
FAILED = list(ANSWERS)[1:]


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with serve(ANSWERS) as found:
        yield found


def test_what_an_endpoint_may_answer_a_load(server: HostileServer) -> None:
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    ran = subprocess.run(
        [str(python), "-c", SEND, str(ROOT), server.url, "sound", *FAILED],
        env=server_environment(os.environ, {}, python=python),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = ran.stdout.partition("BEGIN\n")[2].splitlines()
    *found, kibibytes = [json.loads(line) for line in lines]
    outcomes = {name: (success, tokens) for name, success, tokens, _ in found}
    assert outcomes == {"sound": (True, 2)} | dict.fromkeys(FAILED, (False, 0))
    words = {name: error for name, _, _, error in found}
    assert "redirects are not followed" in words["elsewhere"]
    assert "compressed" in words["packed"]
    assert "out of memory" in words["failing"]
    assert "3 tokens came, 2 were asked for" in words["longer"]
    assert "does not say how many" in words["uncounted"]
    assert "larger than" in words["endless"]
    assert "larger than" in words["one_line"]
    assert {name for name in server.asked if name in ANSWERS} == set(ANSWERS)
    assert kibibytes < 64 * 1024
