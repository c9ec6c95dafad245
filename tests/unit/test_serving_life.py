"""A server's whole life, from start to the last process gone.

The server is a stand-in, but a real process with a real port and a child of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from model_server_stand_in import stand_in_python

from pipeline.errors import ServingError
from pipeline.events import Silent
from pipeline.serving import Server, ServingArguments, port_is_free

NO_CACHE = "ValueError: No available memory for the cache blocks."
LAST_WORDS = f"""\
(EngineCore pid=23990) ERROR 11-21 09:08:43 [core.py:1510] EngineCore failed to start.
(EngineCore pid=23990) ERROR 11-21 09:08:43 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=23990) ERROR 11-21 09:08:43 [core.py:1510] {NO_CACHE}
(APIServer pid=23978) RuntimeError: Engine core initialization failed. See root cause above.
"""


class Heard(Silent):
    """Keeps the progress it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, int | None]] = []

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        self.events.append((task, done, total))


@pytest.fixture
def server(tmp_path: Path) -> Callable[..., Server]:
    """Makes a server of the stand-in; the variables say how it behaves."""

    def make(trust_remote_code: bool = False, **environment: str) -> Server:
        (tmp_path / "weights").mkdir()
        return Server(
            stand_in_python(tmp_path),
            tmp_path / "weights",
            ServingArguments({"max-num-seqs": 8, "enforce-eager": True}, environment),
            tmp_path / "server.baseline.log",
            trust_remote_code=trust_remote_code,
        )

    return make


def facts(server: Server) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.get(f"{server.url}/facts", trust_env=False).json()
    return answer


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def failure(server: Server, timeout_seconds: float = 30) -> ServingError:
    with pytest.raises(ServingError) as caught:
        server.start(timeout_seconds, Silent())
    return caught.value


def death(server: Server) -> ServingError:
    """Wait until the server is found dead."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            server.check_alive()
        except ServingError as error:
            return error
        time.sleep(0.05)
    raise AssertionError("the server lives on")


def test_ready_answers_and_nothing_left(
    server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    served, heard = server(OMP_NUM_THREADS="1"), Heard()
    seconds = served.start(30, heard)
    assert 0 < seconds < 30
    assert heard.events[-1] == ("start the server", 1, 1)
    served.check_alive()
    told = facts(served)
    port = served.url.rpartition(":")[2]
    assert served.command == [str(tmp_path / "python"), *told["arguments"]]
    assert told["arguments"] == [
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(tmp_path / "weights")),
        *("--served-model-name", "model"),
        *("--config-format", "hf", "--load-format", "safetensors"),
        *("--host", "127.0.0.1"),
        *("--port", port),
        *("--max-num-seqs", "8"),
        "--enforce-eager",
    ]
    assert told["environment"]["OMP_NUM_THREADS"] == "1"
    assert told["environment"]["HF_HUB_OFFLINE"] == "1"
    assert "PYTHONPATH" not in told["environment"]
    assert all(is_running(pid) for pid in told["processes"])
    served.stop()
    assert not any(is_running(pid) for pid in told["processes"])
    assert port_is_free(int(port))
    served.stop()  # a second time is no error
    assert "startup complete" in (tmp_path / "server.baseline.log").read_text()


def test_remote_code_is_trusted_only_when_asked(server: Callable[..., Server]) -> None:
    assert server(trust_remote_code=True).command[-1] == "--trust-remote-code"


def test_dying_while_starting_is_told_in_the_logs_words(
    server: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "words").write_text(LAST_WORDS)
    error = failure(server(STAND_IN="dies", STAND_IN_LOG=str(tmp_path / "words")))
    assert error.what == (
        f"the model server ended with exit code 1 while starting; its log says: {NO_CACHE}"
    )
    assert error.where == str(tmp_path / "server.baseline.log")
    assert "less to hold" in error.cure


def test_killed_while_starting_is_told_as_short_memory(server: Callable[..., Server]) -> None:
    error = failure(server(STAND_IN="killed"))
    assert "was killed, most likely because the machine ran out of memory" in error.what


def test_never_ready_is_a_timeout_and_nothing_is_left(
    server: Callable[..., Server], tmp_path: Path
) -> None:
    before = set(processes_mentioning(tmp_path))
    started = time.monotonic()
    error = failure(server(STAND_IN="silent"), timeout_seconds=1)
    assert 1 < time.monotonic() - started < 20
    assert error.what.startswith("the model server was not ready after 1 s")
    assert "still loading" in error.what
    assert set(processes_mentioning(tmp_path)) == before == set()


def processes_mentioning(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command:
            found.append(int(entry.name))
    return found


def test_healthy_but_refusing_to_answer_is_a_failure(server: Callable[..., Server]) -> None:
    error = failure(server(STAND_IN="refuses"))
    assert "answered 500" in error.what
    assert "EngineCore is dead" in error.what


def test_a_stranger_on_the_port_is_not_taken_for_ours(server: Callable[..., Server]) -> None:
    assert "not ready" in failure(server(STAND_IN="another"), timeout_seconds=1).what


def test_a_port_that_was_taken_meanwhile_is_tried_again(
    server: Callable[..., Server], tmp_path: Path
) -> None:
    served = server(STAND_IN="port-taken", STAND_IN_MARK=str(tmp_path / "mark"))
    served.start(30, Silent())
    served.check_alive()
    served.stop()
    first = (tmp_path / "server.baseline.port-taken-1.log").read_text()
    assert "Address already in use" in first
    assert "startup complete" in (tmp_path / "server.baseline.log").read_text()


def test_dying_later_is_noticed(server: Callable[..., Server]) -> None:
    served = server()
    served.start(30, Silent())
    child = facts(served)["processes"][1]
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"{served.url}/die", trust_env=False)
    assert "ended with exit code 9" in death(served).what
    assert not is_running(child)
    served.stop()


def test_an_interpreter_that_does_not_exist_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no-such-python"
    served = Server(missing, tmp_path, ServingArguments({}, {}), tmp_path / "log")
    error = failure(served)
    assert "exit code 127" in error.what
    assert str(missing) in error.what
    served = Server(Path(sys.executable), tmp_path, ServingArguments({}, {}), tmp_path / "log2")
    assert "No module named 'vllm'" in failure(served).what
