"""Killed at any change of its files, a run is finished by running it again, as if nothing had been.

Real SIGKILLs: each life of the run is a separate process, which ends itself before a change of
the file system, or just after it has opened a file and has written nothing into it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_run import ONE, TWO, FakeRun, lost, policy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pretend_stages import PretendModels

from artifacts.evidence.verify import check_run
from artifacts.run_record import read_run
from prepare.stage import StageSpec
from prepare.store import RECORD, RUN_RECORD, RunFolders, Store

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
QUESTIONS = 120


def bench(store: Path, *, descends: bool) -> FakeRun:
    score = lost(2)
    models = PretendModels(
        lambda v, suite, n: score("baseline" if v == TWO else v, suite, n), QUESTIONS
    )
    return FakeRun(
        store,
        models,
        policy(noise_floor_questions=16),
        (ONE, TWO),
        until_pass=descends,
        sizes={ONE: 100, TWO: 200},
    )


def in_a_life_of_its_own(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def at_each_change(store: Path, reached: Callable[[int, str, tuple[Any, ...]], object]) -> None:
    number = 0

    def hook(event: str, details: tuple[Any, ...]) -> None:
        nonlocal number
        opened = event == "open" and isinstance(details[2], int) and details[2] & WRITES
        if (event in CHANGES or opened) and str(details[0]).startswith(str(store)):
            number += 1
            reached(number, event, details)

    sys.addaudithook(hook)


def run_until(store: Path, change: int, *, after_opening: bool, descends: bool) -> bool:
    def die(number: int, event: str, details: tuple[Any, ...]) -> None:
        if number == change:
            if event == "open" and after_opening:
                os.open(details[0], details[2], 0o600)
            os.kill(os.getpid(), signal.SIGKILL)

    def run_in_child() -> None:
        at_each_change(store, die)
        bench(store, descends=descends).run()

    return in_a_life_of_its_own(run_in_child) == -signal.SIGKILL


def contents(stage: Path) -> dict[str, object]:
    found: dict[str, object] = {
        str(f.relative_to(stage)): f.read_bytes() for f in stage.rglob("*") if f.is_file()
    }
    record = json.loads((stage / RECORD).read_bytes())
    record["result"].pop("requests", None)
    if "history" in record["result"]:  # a killed start was one more
        record["result"] = without_starts(record["result"])
    del record["input_digests"]
    return found | {RECORD: record}


def without_starts(told: dict[str, Any]) -> dict[str, Any]:
    return {**told, "history": {**told["history"], "starts": None}}


def whole_stages(store: Path) -> dict[str, dict[str, object]]:
    return {
        f"{folder.parent.name}/{folder.name}": contents(folder)
        for folder in (store / "stages").glob("*/*")
        if "." not in folder.name
    }


def started(run: Path) -> list[str]:
    files = [f for f in run.glob("stages/*.json") if ".serving_task." not in f.name]
    specs = [StageSpec.model_validate_json(f.read_bytes()) for f in files]
    return [f"{spec.stage}/{spec.key}" for spec in specs]


def answers(store: Path) -> int:
    return sum(
        answer_log.read_bytes().count(b"\n") for answer_log in (store / "answers").glob("*.jsonl")
    )


class Undisturbed:
    def __init__(self, store: Path, *, descends: bool) -> None:
        self.descends = descends
        counted = store.with_name("changes")

        def run_in_child() -> None:
            at_each_change(store, lambda number, *_: counted.write_text(str(number)))
            bench(store, descends=descends).run()

        assert in_a_life_of_its_own(run_in_child) == 0
        self.changes = int(counted.read_text())
        self.stages = whole_stages(store)
        self.answers = answers(store)
        self.report = read_run(*RunFolders(Store(store)).all())


@pytest.fixture(scope="module", params=[False, True], ids=["all", "until pass"])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Undisturbed:
    store = tmp_path_factory.mktemp("undisturbed") / "store"
    return Undisturbed(store, descends=request.param)


def test_there_is_something_to_disturb(undisturbed: Undisturbed) -> None:
    assert undisturbed.changes > 100
    assert {v.verdict for v in undisturbed.report.variants} == {"pass", "fail"}
    assert undisturbed.answers > 3 * 16


@pytest.mark.timeout(600)  # on a busy machine, many processes wait for their turn
@settings(max_examples=8)
@example(deaths=[(1.0, False)])
@given(
    deaths=st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=3),
)
def test_killed_at_any_change_and_run_again(
    undisturbed: Undisturbed,
    deaths: list[tuple[float, bool]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    store = tmp_path_factory.mktemp("killed") / "store"
    finished: set[str] = set()
    for share, after_opening in deaths:
        change = 1 + round(share * (undisturbed.changes - 1))
        known = set(RunFolders(Store(store)).all())
        killed = run_until(
            store, change, after_opening=after_opening, descends=undisturbed.descends
        )
        # What lies under a final name is whole, and stays.
        whole = whole_stages(store)
        assert [stage for stage in whole if whole[stage] != undisturbed.stages[stage]] == []
        assert finished <= set(whole)
        finished = set(whole)
        # The record of each life is whole as well, or not there.
        ended = {"killed"} if killed else {"finished"}
        if whole == undisturbed.stages:  # all was done, and perhaps told, when it was killed
            ended.add("finished")
        for run in set(RunFolders(Store(store)).all()) - known:
            assert not (run / RUN_RECORD).exists() or read_run(run).status in ended
    kept = answers(store)
    before = [stage for run in RunFolders(Store(store)).all() for stage in started(run)]

    again = bench(store, descends=undisturbed.descends)
    report = again.run()
    told, undisturbed_told = (
        [without_starts(variant.model_dump()) for variant in each.variants]
        for each in (report, undisturbed.report)
    )
    assert told == undisturbed_told
    assert (whole_stages(store) == undisturbed.stages) is True
    assert all(not check.differences for check in check_run(report, Store(store)))
    # Each death cost its own stage at most, and no answer that was kept.
    submitted = [*before, *started(RunFolders(Store(store)).all()[-1])]
    assert len(submitted) - len(set(submitted)) <= len(deaths)
    assert kept + sum(number for _, _, number in again.models.asked) == undisturbed.answers
