"""A real run of two copies on one store, killed five times: the same verdicts, and nothing left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from quiz_policy import quiz_policy
from store_processes import left_after

from artifacts.evidence.verify import check_run
from artifacts.run_record import find_run
from prepare.store import Store

pytestmark = pytest.mark.e2e
PREPARE = [sys.executable, "-P", "-m", "prepare"]
RUN, KILLS, COPIES = "nightly", 5, 2


class Copies:
    """Processes that work on one run, each started again when it is killed."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.policy = quiz_policy(folder)
        self.log = folder / "copies.log"
        self.processes = [self.start(index) for index in range(COPIES)]

    def start(self, index: int) -> subprocess.Popen[bytes]:
        command = ["model", "demo:smollm2-135m", "--profile", "cpu", "--recipe", "fp8-dynamic"]
        command += ["--policy", self.policy, "--store", str(self.store), "--run", RUN]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*PREPARE, *command],
                stdout=log,
                stderr=log,
                env={**os.environ, "PREPARE_COPY": str(index)},
            )

    def kill(self, index: int) -> None:
        self.processes[index].send_signal(signal.SIGKILL)
        self.processes[index].wait()
        self.processes[index] = self.start(index)

    @property
    def code(self) -> int | None:
        return self.processes[0].poll()


def finished(store: Store) -> dict[str, str]:
    """Digest of the record of each finished stage."""
    return {
        f"{each.stage}/{each.key}": json.dumps(each.result, sort_keys=True)
        for each in store.records(leave_out_damaged=False)
    }


@pytest.mark.timeout(3000)
def test_two_copies_killed_five_times_come_to_the_same_verdict(tmp_path: Path) -> None:
    chance = random.Random(20261127)
    copies = Copies(tmp_path)
    killed, before = 0, dict[str, str]()
    while copies.code is None:
        time.sleep(chance.uniform(5, 40) if killed < KILLS else 1)
        if killed < KILLS and copies.code is None:
            copies.kill(chance.randrange(COPIES))
            killed += 1
            now = finished(Store(copies.store))
            # What was finished stays as it was.
            assert before.items() <= now.items()
            before = now
    assert killed == KILLS
    assert copies.code == 0, copies.log.read_text()[-4000:]
    assert copies.processes[1].wait(timeout=60) == 0
    store = Store(copies.store)
    report = find_run(store, RUN)
    assert [(each.recipe, each.verdict) for each in report.variants] == [("fp8-dynamic", "pass")]
    assert [each.promoted for each in report.variants] == [True]
    assert all(not check.differences for check in check_run(report, store))
    assert left_after(copies.store, 60) == []
    assert not list(copies.store.glob("stages/*/*.partial"))
    # Each answer is kept once, and was asked once.
    for record in store.records("evaluate"):
        rows = (store.stage_folder("evaluate", record.key) / "answers.jsonl").read_text()
        ids = [json.loads(line)["id"] for line in rows.splitlines()]
        assert len(ids) == len(set(ids)) == record.result["n"]
    ran = Counter(each.key for each in report.stages if each.status == "ran" and each.key)
    assert all(count == 1 for count in ran.values())
