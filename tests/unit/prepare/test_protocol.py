from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from loose_stage import stage_spec

from pipeline.stages.context import StageContext
from pipeline.stages.staying_workers import (
    BOOTSTRAP,
    StayingWorkers,
    WorkerFiles,
    WorkerStart,
)
from prepare.errors import WorkerError
from prepare.events import EVENTS_FD_VARIABLE
from prepare.file_locks import is_locked, locked
from prepare.store import Store

# A worker with many ways to end; its spec says which.
WORKER = """
import importlib.util, os, sys, threading, time
from prepare.errors import CheckpointError

def run(spec, progress, output):
    how = spec["how"]
    if how == "result":
        progress.advance("count", 1, 2, "things")
        progress.note("look here")
        (output / "made.txt").write_text("made")
        return {"told": spec, "arguments": sys.argv[1:], "python": sys.executable}
    if how == "imports":
        found = [name for name in spec["names"] if importlib.util.find_spec(name)]
        return {"found": found, "path": sys.path}
    if how == "expected":
        raise CheckpointError("it is broken", where="here", hint="mend it")
    if how == "unexpected":
        raise ValueError("x" * 5000)
    if how == "connects":
        import json, logging
        address = "http://me:urlSECRET9999@host/v1"
        os.environ["PREPARE_ADDRESSES"] = json.dumps({"http://***@host/v1": address})
        os.environ["OPENAI_API_KEY"] = "sk-SECRET9999"
        logging.basicConfig()
        # As aiohttp's errors are, with the headers of the request; lm-eval logs them.
        logging.error("'Authorization': 'Basic bWU6dXJsU0VDUkVUOTk5OQ==', 'Bearer sk-SECRET9999'")
        print(address)
        raise ValueError(address) from KeyError("urlSECRET9999")
    if how == "disk":
        with open("/dev/full", "w") as file:
            file.write("a" * 100_000)
    if how == "disk, in another language":
        raise RuntimeError("Error while serializing: No space left on device (os error 28)")
    if how == "thread":
        threading.Thread(target=time.sleep, args=(60,)).start()
        return {}
    if how == "who":
        print("here")
        return {"pid": os.getpid()}
    if how == "waits":
        progress.note("it waits")
        time.sleep(60)
    if how == "memory":
        block = bytearray(200 * 2**20)
        block[::4096] = b"a" * len(block[::4096])
        return {"size": len(block)}
    os._exit(3)
"""


# Stands in for an interpreter with a worker that tells how far it is.
TELLING = f"""
import os, sys
from pathlib import Path
events = b'''{{"event": "progress", "task": "t", "done": 1, "total": 2, "unit": "u"}}
{{"event": "note", "text": "look here"}}
'''
os.write(int(os.environ["{EVENTS_FD_VARIABLE}"]), events)
Path(sys.argv[4]).write_text('{{"ok": true, "result": {{"a": 1}}}}')
"""


class TinyWorker:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output"
        self.output.mkdir()
        self.modules = folder / "modules"
        self.modules.mkdir()
        (self.modules / "tiny_worker.py").write_text(WORKER)

    def start(self, python: str = sys.executable, **spec: Any) -> subprocess.CompletedProcess[str]:
        (self.folder / "spec.json").write_text(json.dumps(spec))
        (self.folder / "result.json").unlink(missing_ok=True)
        paths = [self.folder / "spec.json", self.folder / "result.json", self.output]
        return subprocess.run(
            [python, str(BOOTSTRAP), "tiny_worker", *map(str, paths)],
            # The worker's module must come from somewhere; a real one is in this project.
            env={"PYTHONPATH": str(self.modules), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def answer(self) -> Any:
        return json.loads((self.folder / "result.json").read_text())


@pytest.fixture
def worker(tmp_path: Path) -> TinyWorker:
    return TinyWorker(tmp_path)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bare") / "environment"
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True, timeout=60)
    return str(folder / "bin" / "python")


def start_without_libraries(
    worker: TinyWorker, bare_python: str, module: str
) -> subprocess.CompletedProcess[bytes]:
    (worker.folder / "spec.json").write_text("{}")
    paths = [worker.folder / "spec.json", worker.folder / "result.json", worker.output]
    command = [bare_python, str(BOOTSTRAP), module, *map(str, paths)]
    return subprocess.run(command, env={}, capture_output=True, timeout=30, check=False)


class TestAnswer:
    def test_a_result(self, worker: TinyWorker) -> None:
        ended = worker.start(how="result", grüße=[1, None])
        assert ended.returncode == 0
        answer = worker.answer()
        assert answer["ok"] is True
        assert answer["result"]["told"] == {"how": "result", "grüße": [1, None]}
        assert answer["result"]["arguments"][2] == str(worker.output)
        assert (worker.output / "made.txt").read_text() == "made"

    def test_no_credential_is_in_its_log(self, worker: TinyWorker) -> None:
        """The log lies in the store, and goes into the evidence."""
        ended = worker.start(how="connects")
        told = ended.stdout + ended.stderr + json.dumps(worker.answer())
        assert "Authorization" in told
        assert "Traceback" in told
        assert "SECRET" not in told
        assert "dXJsU0VDUkVUOTk5OQ" not in told

    def test_an_expected_error_crosses_as_itself(self, worker: TinyWorker) -> None:
        ended = worker.start(how="expected")
        assert ended.returncode == 1
        assert worker.answer()["ok"] is False
        assert worker.answer()["error"] == {
            "kind": "CheckpointError",
            "message": "it is broken",
            "where": "here",
            "hint": "mend it",
        }
        assert "Traceback" not in ended.stderr

    def test_an_unexpected_one_leaves_its_traceback_in_the_log(self, worker: TinyWorker) -> None:
        ended = worker.start(how="unexpected")
        assert ended.returncode == 1
        error = worker.answer()["error"]
        assert error["kind"] == "WorkerError"
        assert error["message"].startswith("ValueError: xxx")
        assert len(error["message"]) < 2100
        assert "Traceback" in ended.stderr
        assert "tiny_worker.py" in ended.stderr

    @pytest.mark.parametrize("how", ["disk", "disk, in another language"])
    def test_a_full_disk(self, worker: TinyWorker, how: str) -> None:
        worker.start(how=how)
        error = worker.answer()["error"]
        assert (error["kind"], error["message"]) == ("StoreError", "the disk is full")
        assert "--store" in error["hint"]

    def test_threads_that_libraries_leave_behind_do_not_hold_it(self, worker: TinyWorker) -> None:
        assert worker.start(how="thread").returncode == 0


class TestImports:
    OURS = ("prepare", "pipeline", "recipes", "eval_gates")
    NOT_OURS = ("artifacts", "pydantic", "mlflow", "httpx", "pytest", "listener")
    # Files next to bootstrap.py and the packages, which must not be modules.
    NEIGHBOURS = ("protocol", "quantize_autoawq", "evaluate", "bootstrap", "errors", "tests")

    def test_exactly_four_packages(self, worker: TinyWorker, bare_python: str) -> None:
        names = [*self.OURS, *self.NOT_OURS, *self.NEIGHBOURS, "json"]
        ended = worker.start(bare_python, how="imports", names=names)
        assert ended.returncode == 0, ended.stderr
        result = worker.answer()["result"]
        assert result["found"] == [*self.OURS, "json"]
        project = str(BOOTSTRAP.parents[1])
        own = [entry for entry in result["path"] if entry.startswith(project)]
        assert own == []

    @pytest.mark.parametrize(
        "module",
        [
            "recipes.checkpoints.convert_gguf_worker",
            "recipes.quantizers.model_free_worker",
            "recipes.quantizers.autoawq_worker",
            "recipes.quantizers.llm_compressor_worker",
        ],
    )
    def test_every_worker_starts_with_the_standard_library_alone(
        self, worker: TinyWorker, bare_python: str, module: str
    ) -> None:
        """Its environment has none of the core's libraries: it ends at a missing spec or key."""
        ended = start_without_libraries(worker, bare_python, module)
        assert ended.returncode == 1
        what = worker.answer()["error"]["message"]
        installed_later = ("vllm", "torch", "transformers", "gguf", "awq")
        assert what.startswith("KeyError:") or any(
            f"No module named '{name}'" in what for name in installed_later
        )


class TestRunWorker:
    def context(self, tmp_path: Path, python: str = sys.executable) -> StageContext:
        store = Store(tmp_path / "store")
        folder = tmp_path / "stage"
        folder.mkdir()
        spec = stage_spec("questions", "mmlu", {}, {}, {"python": python}, store.root)
        return StageContext(spec, folder, store, Listener())

    def test_an_unexpected_one_names_the_log(self, tmp_path: Path) -> None:
        context = self.context(tmp_path)
        with pytest.raises(WorkerError, match="'suite'") as caught:
            context.run_worker("eval_gates.questions_worker", {})
        log = context.folder / "worker.log"
        assert caught.value.where == str(log)
        assert "Traceback" in log.read_text()

    @pytest.mark.parametrize(
        ("script", "words"),
        [
            ("exit 7", "exit code 7 and no result"),
            (": > $4; exit 1", "exit code 1 and no result"),  # its answer did not fit on the disk
            ("kill -KILL $$", "exit code 137 and no result.*out of memory"),
        ],
    )
    def test_one_that_dies(self, tmp_path: Path, script: str, words: str) -> None:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\necho last words\n{script}\n")
        python.chmod(0o755)
        context = self.context(tmp_path, str(python))
        with pytest.raises(WorkerError, match=words) as caught:
            context.run_worker("eval_gates.questions_worker", {})
        assert Path(caught.value.where).read_text() == "last words\n"

    def test_progress_and_notes_arrive_by_the_descriptor(self, tmp_path: Path) -> None:
        python = tmp_path / "python"
        python.write_text(f"#!{sys.executable}\n{TELLING}")
        python.chmod(0o755)
        context = self.context(tmp_path, str(python))
        assert context.run_worker("eval_gates.questions_worker", {}) == {"a": 1}
        listener = context.progress
        assert isinstance(listener, Listener)
        assert listener.events == [("mmlu: t", 1, 2, "u")]
        assert listener.notes == ["mmlu: look here"]
        assert context.notes == ["look here"]


class Looking(Listener):
    """At its first note it lets go of a lock, as a killed process does, and interrupts."""

    def __init__(self, lock: Path) -> None:
        super().__init__()
        self.lock = lock
        self.held = ExitStack()
        self.held.enter_context(locked(lock))
        self.was_locked = False

    def note(self, text: str) -> None:
        self.held.close()
        self.was_locked = is_locked(self.lock)
        raise KeyboardInterrupt


class TestStayingWorkers:
    """Requests to one process, as stages make them."""

    @pytest.fixture
    def workers(self) -> Iterator[StayingWorkers]:
        workers = StayingWorkers()
        yield workers
        workers.end()

    @pytest.fixture
    def ask(self, worker: TinyWorker, workers: StayingWorkers) -> Callable[..., tuple[int, Any]]:
        def ask(
            how: str,
            *,
            log: str = "log",
            progress: Listener | None = None,
            variables: Mapping[str, str] | None = None,
        ) -> tuple[int, Any]:
            """Exit code, and answer of the worker or None."""
            (worker.folder / "spec.json").write_text(json.dumps({"how": how}))
            (worker.folder / "result.json").unlink(missing_ok=True)
            files = WorkerFiles(
                spec=worker.folder / "spec.json",
                result=worker.folder / "result.json",
                output=worker.output,
                log=worker.folder / log,
            )
            known = {"PYTHONPATH": str(worker.modules), "PATH": os.environ["PATH"]}
            start = WorkerStart.of(sys.executable, {**known, **(variables or {})})
            code = workers.call_worker("tiny_worker", start, files, progress or Listener())
            return code, worker.answer() if files.result.exists() else None

        return ask

    def test_one_process_answers_all(self, worker: TinyWorker, ask: Any) -> None:
        first = ask("who", log="a.log")[1]["result"]
        code, failed = ask("expected", log="b.log")
        last = ask("who", log="c.log")[1]["result"]
        assert (code, failed["error"]["kind"]) == (0, "CheckpointError")
        assert first == last
        logs = [(worker.folder / f"{name}.log").read_text() for name in "abc"]
        assert logs == ["here\n", "", "here\n"]

    def test_one_that_dies_is_replaced(self, ask: Any) -> None:
        first = ask("who")[1]["result"]["pid"]
        assert ask("dies") == (3, None)
        second = ask("who")[1]["result"]["pid"]
        os.kill(second, signal.SIGKILL)
        third = ask("who")[1]["result"]["pid"]
        assert len({first, second, third}) == 3

    def test_locks_are_held_until_the_answer(self, tmp_path: Path, ask: Any) -> None:
        """Else another command takes the stage over while this one's worker still writes."""
        lock = tmp_path / "lock"
        with locked(lock):
            ask("who")
        assert not is_locked(lock)
        progress = Looking(lock)
        with pytest.raises(KeyboardInterrupt):
            ask("waits", progress=progress)
        assert progress.was_locked
        assert not is_locked(lock)  # the worker was ended

    def test_progress_of_each_request(self, ask: Any) -> None:
        for _ in range(2):
            listener = Listener()
            ask("result", progress=listener)
            assert listener.events == [("count", 1, 2, "things")]
            assert listener.notes == ["look here"]

    def test_peak_memory_of_each_request(self, ask: Any) -> None:
        large = ask("memory")[1]["peak_memory_bytes"]
        small = ask("who")[1]["peak_memory_bytes"]
        assert large > 200 * 2**20
        assert small < large - 100 * 2**20

    def test_a_process_has_one_set_of_variables(self, ask: Any) -> None:
        """A credential reaches no worker that does not need it."""
        keys = ("first", "second", "first")
        pids = [ask("who", variables={"KEY": key})[1]["result"]["pid"] for key in keys]
        assert pids[0] == pids[2] != pids[1]

    def test_none_is_left(self, worker: TinyWorker, workers: StayingWorkers, ask: Any) -> None:
        pid = ask("who")[1]["result"]["pid"]
        workers.end()
        assert not Path(f"/proc/{pid}").exists()
