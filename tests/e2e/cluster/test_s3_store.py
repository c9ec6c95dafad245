"""The store on a real S3 server: processes killed and stopped, the server away for a while."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from s3_server import BUCKET, S3Server

from pipeline.core.errors import StoreError, UsageError
from pipeline.core.leases import Leases
from pipeline.core.object_store import ObjectStore
from pipeline.core.remote_store import cache_folder
from pipeline.core.remote_store_variable import REMOTE_STORE_VARIABLE
from pipeline.core.run_folders import RunFolders
from pipeline.core.store import Store

WRITER = Path(__file__).with_name("s3_writer.py")
COLLECTION = Path(__file__).with_name("beside_collection.py")
pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(300)]


@pytest.fixture
def url(s3: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {**s3.variables, REMOTE_STORE_VARIABLE: ""}.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{request.node.name}"


class Nodes:
    """Processes on one store, each on a node with a separate cache."""

    def __init__(self, url: str, folder: Path, stages: int) -> None:
        self.url, self.folder, self.stages = url, folder, stages

    def cache(self, node: str) -> Path:
        return cache_folder(self.url, self.folder / node)

    def start(self, node: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(WRITER), str(self.cache(node)), node, str(self.stages)]
        environment = {**os.environ, "PREPARE_LEASE_SECONDS": "3"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def check(self) -> None:
        """Every stage is there, whole, and one writer's, for a node that was not there."""
        store = Store(self.cache("fresh"))
        for number in range(self.stages):
            key = f"{number:064x}"
            record = store.find("judge", key)
            assert record is not None, f"stage {number} was lost"
            folder = store.stage_folder("judge", key)
            texts = {(folder / name).read_text() for name in "abc"}
            assert texts == {record.result["writer"] + "x" * 100_000}


def ends_done(process: subprocess.Popen[str]) -> None:
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    assert said.splitlines()[-1] == "done"


def test_several_nodes_do_each_stage_once(url: str, tmp_path: Path) -> None:
    nodes = Nodes(url, tmp_path, stages=6)
    processes = [nodes.start(node) for node in ("one", "two", "three")]
    said = [process.communicate(timeout=120)[0] for process in processes]
    had = [line for text in said for line in text.splitlines() if line.startswith("has")]
    assert len(had) == len(set(had)) == 6
    nodes.check()


def test_processes_killed_and_stopped_at_any_time(url: str, tmp_path: Path) -> None:
    nodes, chance = Nodes(url, tmp_path, stages=12), random.Random(14)
    names = ["one", "two", "one"]  # two of them share a node
    processes = [nodes.start(node) for node in names]
    try:
        for _ in range(15):
            time.sleep(chance.uniform(0.3, 1.2))
            number = chance.randrange(len(processes))
            process = processes[number]
            if process.poll() is not None:
                continue
            if chance.random() < 0.3:
                process.send_signal(signal.SIGSTOP)
                time.sleep(4)  # longer than others wait
                process.send_signal(signal.SIGCONT)
            else:
                process.kill()
                process.communicate()
                processes[number] = nodes.start(names[number])
        for process in processes:
            ends_done(process)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    nodes.check()


def test_a_server_that_goes_away_for_a_while(url: str, s3: S3Server, tmp_path: Path) -> None:
    nodes = Nodes(url, tmp_path, stages=8)
    process = nodes.start("one")
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("has")
        s3.stop()
        time.sleep(8)
        assert process.poll() is None
        s3.start()
        ends_done(process)
    finally:
        process.kill()
        process.communicate()
        if not s3.is_up:
            s3.start()
    nodes.check()


def test_many_threads_take_turns(url: str) -> None:
    objects, holders, most = ObjectStore(url), [0], [0]

    def take_turns(node: str) -> None:
        claims = Leases(objects.below("leases"), node=node, seconds=60)
        for _ in range(4):
            with claims.hold("key"):
                holders[0] += 1
                most[0] = max(most[0], holders[0])
                time.sleep(0.01)
                holders[0] -= 1

    threads = [threading.Thread(target=take_turns, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    with Leases(objects.below("leases")).hold("key") as last:
        assert last.number == 17


def test_a_bucket_that_is_not_there(url: str, tmp_path: Path) -> None:
    store = Store(cache_folder("s3://no-such-bucket/x", tmp_path))
    began = time.monotonic()
    with pytest.raises(UsageError) as caught:
        RunFolders(store).make("r")
    assert time.monotonic() - began < 1
    assert caught.value.where == "s3://no-such-bucket/x"


def test_credentials_that_are_wrong(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(StoreError) as caught:
        ObjectStore(url).put("x", b"1")
    assert "wrong-secret" not in str(caught.value)


def test_runs_beside_collections_that_are_killed(url: str, tmp_path: Path) -> None:
    """What a run has found or done is there as long as it goes on."""
    chance = random.Random(2)

    def start(role: str, node: str, rounds: int) -> subprocess.Popen[str]:
        cache = cache_folder(url, tmp_path / node)
        command = [sys.executable, str(COLLECTION), role, str(cache), str(rounds)]
        environment = {**os.environ, "PREPARE_LEASE_SECONDS": "3"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    runs, collector = start("run", "one", 12), start("collect", "two", 1000)
    try:
        while runs.poll() is None:
            time.sleep(chance.uniform(3, 6))
            collector.kill()
            collector.communicate()
            collector = start("collect", chance.choice(["one", "two"]), 1000)
        collector.kill()
        collector.communicate()
        done = int(runs.communicate()[0])
        assert runs.returncode == 0
        assert done > 4  # else nothing was removed
        last = start("collect", "two", 1)  # of what is left, if anything is
        last.communicate(timeout=60)
        assert last.returncode == 0
        left = ObjectStore(url).names()
        assert {name.partition("/")[0] for name in left} <= {"leases", "fetching"}
    finally:
        for process in (runs, collector):
            process.kill()
            process.wait()
