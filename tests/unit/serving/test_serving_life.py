"""A server's whole life, from start to the last process gone.

The server is a stand-in, but a real process with a real socket and a separate child.
"""

from __future__ import annotations

import json
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from model_server_stand_in import stand_in_python
from small_checkpoint import safetensors

from pipeline.serving.argument_check import engine_version
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from prepare.errors import ServingError
from prepare.events import NullProgress
from recipes.engines.kv_report import NOT_TOLD

NO_CACHE = "ValueError: No available memory for the cache blocks."
LAST_WORDS = f"""\
(EngineCore pid=23990) ERROR 11-21 09:08:43 [core.py:1510] EngineCore failed to start.
(EngineCore pid=23990) ERROR 11-21 09:08:43 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=23990) ERROR 11-21 09:08:43 [core.py:1510] {NO_CACHE}
(APIServer pid=23978) RuntimeError: Engine core initialization failed. See root cause above.
"""


class Heard(NullProgress):
    def __init__(self) -> None:
        self.events: list[tuple[str, int, int | None]] = []

    def advance(self, task: str, done: int, total: int | None, unit: str = "") -> None:
        self.events.append((task, done, total))


@pytest.fixture
def server(tmp_path: Path) -> Callable[..., Server]:
    def make(
        trust_remote_code: bool = False,
        kv_cache_dtype: str = "auto",
        **environment: str,
    ) -> Server:
        engine_arguments = {"max-num-seqs": 8, "enforce-eager": True}
        if kv_cache_dtype != "auto":
            engine_arguments["kv-cache-dtype"] = kv_cache_dtype
        (tmp_path / "weights").mkdir()
        return Server(
            stand_in_python(tmp_path),
            tmp_path / "weights",
            ServingArguments(engine_arguments, environment),
            tmp_path / "server.baseline.log",
            trust_remote_code=trust_remote_code,
        )

    return make


def facts(server: Server) -> dict[str, Any]:
    with server.client(timeout_seconds=10) as client:
        answer: dict[str, Any] = client.get("/facts").json()
        return answer


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def failure(server: Server, timeout_seconds: float = 30) -> ServingError:
    with pytest.raises(ServingError) as caught:
        server.start(timeout_seconds, NullProgress())
    return caught.value


def death(server: Server) -> ServingError:
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
    seconds = served.start(30, heard, "fp8")
    assert 0 < seconds < 30
    whole = max(int(seconds), 1)  # on a busy machine more than one
    assert heard.events[-1] == ("fp8: start the server", whole, whole)
    served.check_alive()
    told = facts(served)
    socket = served.socket
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert served.command == [str(tmp_path / "python"), *told["arguments"]]
    assert told["arguments"] == [
        *("-m", "vllm.entrypoints.launchers.api_server.entry"),
        *("--model", str(tmp_path / "weights")),
        *("--served-model-name", "model"),
        *("--config-format", "hf", "--load-format", "safetensors"),
        *("--host", "127.0.0.1", "--uds", str(socket)),
        *("--max-num-seqs", "8"),
        "--enforce-eager",
    ]
    assert told["environment"]["OMP_NUM_THREADS"] == "1"
    assert told["environment"]["HF_HUB_OFFLINE"] == "1"
    assert told["environment"]["PYTHONPATH"] == str(socket.parent / "reports")
    assert all(is_running(pid) for pid in told["processes"])
    served.stop()
    assert not any(is_running(pid) for pid in told["processes"])
    assert not socket.parent.exists()
    served.stop()  # a second time is no error
    assert "startup complete" in (tmp_path / "server.baseline.log").read_text()


def test_a_long_temporary_folder_is_not_the_engines(
    server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    served = server()
    served.start(30, NullProgress())
    found = facts(served)["environment"]["TMPDIR"]
    served.stop()
    assert found == str(served.command[served.command.index("--uds") + 1]).rpartition("/")[0]
    assert len(found) < 40


def test_dying_while_starting_quotes_the_log(server: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "words").write_text(LAST_WORDS)
    (tmp_path / "server.baseline.log").write_text("ValueError: of an earlier start\n")
    error = failure(server(STAND_IN="dies", STAND_IN_LOG=str(tmp_path / "words")))
    assert error.message == (
        f"the model server ended with exit code 1 while starting; its log says: {NO_CACHE}"
    )
    assert error.where == str(tmp_path / "server.baseline.log")
    assert "reduce the server's memory" in error.hint


def test_never_ready_is_a_timeout_and_nothing_is_left(
    server: Callable[..., Server], tmp_path: Path
) -> None:
    before = set(processes_mentioning(tmp_path))
    started = time.monotonic()
    error = failure(server(STAND_IN="silent"), timeout_seconds=6)
    assert 6 < time.monotonic() - started < 40
    assert error.message.startswith("the model server was not ready after 6 s")
    assert "still loading" in error.message
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
    assert "responded with 500" in error.message
    assert "EngineCore is dead" in error.message


def test_one_that_serves_another_model_is_not_ready(server: Callable[..., Server]) -> None:
    assert "not ready" in failure(server(STAND_IN="another"), timeout_seconds=1).message


def test_code_in_the_folder_that_it_is_asked_in_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a user serves what they pulled from within its folder: `-m` imports from there."""
    ran = tmp_path / "ran"
    deployed = tmp_path / "deployed"
    (deployed / "vllm").mkdir(parents=True)
    (deployed / "vllm" / "__init__.py").write_text(f"open({str(ran)!r}, 'w')\n")
    monkeypatch.chdir(deployed)
    served = Server(
        Path(sys.executable), deployed, ServingArguments({}, {}), tmp_path / "server.log"
    )
    failure(served)
    with pytest.raises(ServingError):
        engine_version("vllm", Path(sys.executable))
    assert not ran.exists()


def test_dying_later_is_noticed(server: Callable[..., Server]) -> None:
    served = server()
    served.start(30, NullProgress())
    child = facts(served)["processes"][1]
    with pytest.raises(httpx.HTTPError):
        served.client(timeout_seconds=10).post("/die")
    assert "ended with exit code 9" in death(served).message
    assert not is_running(child)
    served.stop()


FACTOR = "WARNING 11-28 [kv_cache.py:163] Using KV cache scaling factor 1.0 for fp8_e4m3. If this\n"
UNREAD = "WARNING 11-28 [weight_utils.py:1700] Found k_scale. k_scale is not loaded.\n"
SCALE = "model.layers.0.self_attn.k_scale"


@pytest.mark.parametrize(
    ("log", "tensors", "kv_cache_dtype", "is_lost"),
    [
        (FACTOR, {SCALE: ("F32", ())}, "auto", True),
        (FACTOR, {SCALE: ("BF16", (1,))}, "fp8", True),
        (UNREAD, {SCALE: ("F32", ())}, "fp8", True),
        (UNREAD, {SCALE: ("F32", ())}, "auto", False),  # a cache of 16 bits has no scales
        (FACTOR, {"model.norm.weight": ("F32", (8,))}, "fp8", False),  # none was stored
        ("", {SCALE: ("F32", ())}, "fp8", False),
    ],
)
def test_scales_of_the_cache_that_the_server_drops(
    server: Callable[..., Server],
    tmp_path: Path,
    log: str,
    tensors: dict[str, tuple[str, tuple[int, ...]]],
    kv_cache_dtype: str,
    is_lost: bool,
) -> None:
    (tmp_path / "words").write_text(log)
    log_file = str(tmp_path / "words")
    served = server(kv_cache_dtype=kv_cache_dtype, STAND_IN="warns", STAND_IN_LOG=log_file)
    (tmp_path / "weights" / "model.safetensors").write_bytes(safetensors(tensors))
    if is_lost:
        error = failure(served)
        assert SCALE in error.message
        assert error.where == str(tmp_path / "weights")
        return
    served.start(30, NullProgress())
    served.stop()


def test_what_the_engine_reports_of_its_cache_refuses_it(
    server: Callable[..., Server], tmp_path: Path
) -> None:
    layer = {"asked": "auto", "stored": "bfloat16", "bytes": 1, "backend": "CPU_ATTN"}
    told = {**layer, "k_scale": [1, 1], "v_scale": [1, 1]}
    report = json.dumps({"version": "0.32.0", "layers": {"layers.0.attn": told}})
    served = server(kv_cache_dtype="fp8", STAND_IN="reports", STAND_IN_REPORT=report)
    (tmp_path / "weights" / "model.safetensors").write_bytes(safetensors({"norm": ("F32", (8,))}))
    error = failure(served)
    assert "kv_cache_dtype" in error.where
    assert "bfloat16" in error.message


def test_a_cache_of_which_the_engine_tells_nothing(server: Callable[..., Server]) -> None:
    served = server()
    served.start(30, NullProgress())
    assert served.facts()["kv_cache"] == served.facts()["kv_scales"] == NOT_TOLD
    served.stop()
