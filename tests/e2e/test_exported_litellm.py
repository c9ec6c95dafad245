"""A real LiteLLM proxy with the exported configuration: shares by weight, and the fallback."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from free_port import free_port
from locked_environment import make_environment

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from some_export import files

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(900)]
LOCK = Path(__file__).parent / "exports" / "litellm.txt"
SERVICES = ("some-model-v2", "some-model-v3", "some-model-v4")
REQUESTS = 150
MASTER_KEY = f"sk-{secrets.token_hex(32)}"


class Backend(ThreadingHTTPServer):
    """A server of one version; it counts requests with the key, and can be broken."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answered = 0
        self.broken = False


class Handler(BaseHTTPRequestHandler):
    server: Backend

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        has_key = self.headers["Authorization"] == "Bearer secret"
        fails = self.server.broken or not has_key
        self.server.answered += not fails
        message = {"role": "assistant", "content": "yes"}
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "model",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        body = json.dumps({"error": {"message": "broken"}} if fails else answer).encode()
        self.send_response(500 if fails else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def backends() -> Iterator[dict[str, Backend]]:
    found = {name: Backend() for name in SERVICES}
    for backend in found.values():
        threading.Thread(target=backend.serve_forever, daemon=True).start()
    yield found
    for backend in found.values():
        backend.shutdown()
        backend.server_close()


@pytest.fixture(scope="module")
def proxy(
    backends: dict[str, Backend], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("litellm")
    python = make_environment(folder, LOCK)
    config = files("litellm")["config.yaml"]
    for name, backend in backends.items():
        config = config.replace(f"http://{name}:8000", f"http://127.0.0.1:{backend.server_port}")
    (folder / "config.yaml").write_text(config)
    address = f"http://127.0.0.1:{free_port()}"
    command = [
        *(python.with_name("litellm"), "--config", "config.yaml", "--telemetry", "False"),
        *("--host", "127.0.0.1", "--port", address.rpartition(":")[2]),
    ]
    environment = {
        **os.environ,
        "VLLM_API_KEY": "secret",
        "LITELLM_MASTER_KEY": MASTER_KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "127.0.0.1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)
    try:
        headers = {"Authorization": f"Bearer {MASTER_KEY}"}
        with httpx.Client(base_url=address, trust_env=False, timeout=60, headers=headers) as client:
            deadline = time.monotonic() + 300
            while not is_alive(client):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(1)
            yield client
    finally:
        process.terminate()
        process.wait(30)


def is_alive(client: httpx.Client) -> bool:
    try:
        return client.get("/health/liveliness").is_success
    except httpx.HTTPError:
        return False


def ask(client: httpx.Client) -> str:
    body = {"model": "some-model", "messages": [{"role": "user", "content": "?"}]}
    answer = client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


def counts(backends: dict[str, Backend]) -> Counter[str]:
    return Counter({name: backend.answered for name, backend in backends.items()})


def test_shares_then_the_fallback(proxy: httpx.Client, backends: dict[str, Backend]) -> None:
    for _ in range(REQUESTS):
        assert ask(proxy) == "yes"
    found = counts(backends)
    assert found["some-model-v2"] == 0
    # 10 % of 150 requests: outside of these bounds in fewer than 1 of 10,000 runs.
    assert 3 <= found["some-model-v4"] <= 32
    assert found.total() == REQUESTS
    for name in ("some-model-v3", "some-model-v4"):
        backends[name].broken = True
    assert [ask(proxy) for _ in range(3)] == ["yes"] * 3
    assert counts(backends)["some-model-v2"] == 3
