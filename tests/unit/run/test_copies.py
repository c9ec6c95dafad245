from __future__ import annotations

import errno
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_run import ONE, TWO, FakeRun, equal, lost
from listener import Listener
from pretend_stages import PretendModels
from sample_reports import RESOLVED

from artifacts.evidence.verify import check_run
from artifacts.requests import ModelRequest
from artifacts.run_record import StageReport, read_run
from pipeline.plan.plan import Piece
from pipeline.run.copies import MAX_EVENT_BYTES, OtherCopies, check_plan, join_run
from pipeline.run.pieces import Failures, Pieces
from pipeline.run.recorder import RunRecorder
from pipeline.run.tries import FAILED, TRIED, TRIES, Tries, empty
from pipeline.stages.block import BLOCK
from prepare.errors import StageError, StoreError, UsageError
from prepare.store import Store
from recipes.speed import SpeedPolicy

REQUEST = ModelRequest(
    checkpoint="./model",
    recipes=("fp8-dynamic",),
    profile="cpu",
    policy=None,
    name=None,
    registry=None,
    eval_data=Path("data"),
    trust_remote_code=False,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


class TestJoining:
    def test_without_options_one_takes_those_of_the_first(self, store: Store) -> None:
        first = join_run(REQUEST, "nightly", store)
        assert join_run(ModelRequest(), "nightly", store) == first
        assert first.request == REQUEST

    def test_with_others_one_is_told_what_differs(self, store: Store) -> None:
        join_run(REQUEST, "nightly", store)
        other = replace(REQUEST, policy="strict")
        with pytest.raises(UsageError, match="policy is None, not strict"):
            join_run(other, "nightly", store)

    @pytest.mark.parametrize("name", ["", "a/b", "../x", ".x", "a" * 65, "a b"])
    def test_an_id_is_a_plain_name(self, store: Store, name: str) -> None:
        with pytest.raises(UsageError, match="no id of a run"):
            join_run(REQUEST, name, store)

    def test_there_must_be_something_to_do(self, store: Store) -> None:
        with pytest.raises(UsageError, match="no run 'nightly'"):
            join_run(ModelRequest(), "nightly", store)

    def test_another_prepare_is_refused(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        join_run(REQUEST, "nightly", store)
        monkeypatch.setattr("pipeline.run.copies.this_prepare", lambda: "0.0.0+code.other")
        with pytest.raises(UsageError, match=r"0\.0\.0\+code\.other"):
            join_run(ModelRequest(), "nightly", store)

    def test_a_run_that_ended_is_told_and_not_done_again(self, store: Store) -> None:
        join_run(REQUEST, "nightly", store)
        log = RunRecorder(store, REQUEST, RESOLVED, run_id="nightly")
        log.finish("finished", 4)
        ended = join_run(ModelRequest(), "nightly", store).ended
        assert ended is not None
        assert ended.exit_code == 4
        assert join_run(ModelRequest(), "nightly", store, retry=True).ended is None
        going_on = RunRecorder(store, REQUEST, RESOLVED, run_id="nightly")
        with pytest.raises(UsageError, match="in progress"):
            join_run(ModelRequest(), "nightly", store, retry=True)
        going_on.finish("interrupted", 130)
        # Copies that a launcher starts are not told of the retry, and who follows them waits.
        assert join_run(ModelRequest(), "nightly", store).ended is None

    @pytest.mark.parametrize("spoil", [os.mkfifo, Path.mkdir, lambda p: p.symlink_to(p)])
    def test_a_request_that_is_no_file_is_refused(
        self, store: Store, spoil: Callable[[Path], None]
    ) -> None:
        folder = store.root / "runs" / "nightly"
        folder.mkdir(parents=True)
        spoil(folder / "request.json")
        with pytest.raises(StoreError, match="damaged"):
            join_run(REQUEST, "nightly", store)

    def test_a_copy_of_another_plan_or_machine_leaves(self, tmp_path: Path) -> None:
        bench = FakeRun(tmp_path / "store")
        check_plan(tmp_path, bench.plan(), "a CPU")
        check_plan(tmp_path, bench.plan(), "a CPU")
        with pytest.raises(UsageError, match="planned for a CPU"):
            check_plan(tmp_path, bench.plan(), "an H100")
        bench.recipes = (ONE, TWO)
        with pytest.raises(UsageError, match="differs from what the first"):
            check_plan(tmp_path, bench.plan(), "a CPU")


class TestTries:
    @pytest.fixture
    def tries(self, tmp_path: Path) -> Tries:
        return Tries(tmp_path)

    def test_one_that_failed_is_not_tried_again_by_this_run(self, tmp_path: Path) -> None:
        bench = FakeRun(tmp_path / "store", recipes=(ONE, TWO), run_id="r")
        bench.models.unquantizable = {TWO}
        assert [each.verdict for each in bench.run().variants] == ["error", "pass"]
        bench.models.unquantizable = set()
        assert [each.verdict for each in bench.run().variants] == ["error", "pass"]
        (error,) = Tries(bench.root / "runs" / "r").failures().values()
        assert isinstance(error, StageError)
        empty(bench.root / "runs" / "r" / FAILED)
        assert [each.verdict for each in bench.run().variants] == ["pass", "pass"]

    def test_one_whose_process_died_is_tried_three_times(self, tries: Tries) -> None:
        assert all(tries.begin("a", "makes a") for _ in range(TRIES))
        assert tries.begin("a", "makes a") is None
        assert "was killed" in tries.failures()["a"].message
        empty(tries.run_folder / FAILED)
        empty(tries.run_folder / TRIED)
        assert tries.begin("a", "makes a")
        assert tries.failures() == {}

    @pytest.mark.parametrize(
        "spoil",
        [os.mkfifo, Path.mkdir, lambda p: p.write_text("[1]"), lambda p: p.write_text("[" * 9999)],
    )
    def test_a_failure_that_nobody_can_read_is_one(
        self, tries: Tries, spoil: Callable[[Path], None]
    ) -> None:
        (tries.run_folder / FAILED).mkdir()
        spoil(tries.run_folder / FAILED / "a")
        (tries.run_folder / FAILED / "b").symlink_to("nowhere")  # just removed by --retry
        assert [type(each) for each in tries.failures().values()] == [StoreError]

    @pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.ESTALE])
    def test_a_full_or_broken_disk_is_no_variants_failure(self, tmp_path: Path, fault: int) -> None:
        """Another variant would take the alias, and the exit code would say that all is well."""

        def score(variant: str, suite: str, number: int) -> float:
            if variant == TWO and is_full:
                full = OSError(fault, os.strerror(fault))
                raise StoreError("the attempt cannot be recorded") from full
            return 1.0

        is_full = True
        bench = FakeRun(tmp_path / "store", PretendModels(score), recipes=(ONE, TWO), run_id="r")
        with pytest.raises(StoreError):
            bench.run()
        folder = bench.root / "runs" / "r"
        assert Tries(folder).failures() == {}
        assert bench.registry.names() == []
        is_full = False
        assert [variant.verdict for variant in bench.run().variants] == ["pass", "pass"]

    def test_an_interruption_is_no_failure(self, tmp_path: Path) -> None:
        def interrupt(variant: str, suite: str, number: int) -> float:
            raise KeyboardInterrupt

        bench = FakeRun(tmp_path / "store", PretendModels(interrupt), run_id="r")
        with pytest.raises(KeyboardInterrupt):
            bench.run()
        folder = bench.root / "runs" / "r"
        assert Tries(folder).failures() == {}
        assert list((folder / TRIED).iterdir()) == []
        assert bench.models.open_now == set()


def test_the_main_copy_records_what_the_others_tell(store: Store) -> None:
    main = RunRecorder(store, REQUEST, RESOLVED, run_id="r")
    other = RunRecorder(store, REQUEST, RESOLVED, run_id="r")
    assert (main.is_main, other.is_main) == (True, False)
    told = Listener()
    with OtherCopies(main, told).heard():
        other.note("it goes on")
        other.advance("asks", 1, 2)
        facts = {"stage": "judge", "name": "judge", "variant": "fp8", "key": "k", "seconds": 1.0}
        other.stage(StageReport(**facts, status="ran"))
        with (main.folder / "copies" / "9.x.jsonl").open("w") as file:
            file.write('{"event": "stage", "stage": 7}\nno json\n{"event": "note", "text": "cut')
    assert [stage.name for stage in main.report().stages] == ["judge"]
    assert told.notes == ["it goes on"]
    other.finish("finished", 0)
    assert json.loads((main.folder / "run.json").read_text())["status"] == "running"


def test_what_no_copy_wrote_neither_stops_nor_spoils_the_record(store: Store) -> None:
    main = RunRecorder(store, REQUEST, RESOLVED, run_id="r")
    folder = main.folder / "copies"
    folder.mkdir()
    os.mkfifo(folder / "0.jsonl")
    (folder / "1.jsonl").mkdir()
    (folder / "2.jsonl").symlink_to("nowhere")
    facts = '"event": "stage", "stage": "s", "name": "s", "variant": "v", "status": "ran"'
    long = '{"event": "note", "text": "' + "x" * MAX_EVENT_BYTES + '"}'
    (folder / "3.jsonl").write_text(
        f'{{{facts}, "key": null, "seconds": NaN}}\n'
        f'{long}\n{{"event": "running", "stages": ["\\ud800"]}}\n'
        '{"event": "note", "text": "on \\u001b[2J"}\n'
    )
    told = Listener()
    with OtherCopies(main, told).heard():
        pass
    assert told.notes == ["on \\u001b[2J"]
    assert read_run(main.folder).stages == []


def test_who_comes_while_the_killed_main_copy_still_ends_takes_over(store: Store) -> None:
    main = RunRecorder(store, REQUEST, RESOLVED, run_id="r")
    again, numbered = (RunRecorder(store, REQUEST, RESOLVED, run_id="r", index=i) for i in (0, 1))
    again.take_over()
    assert not again.is_main
    main.note("found")
    begun = datetime.now(UTC) - timedelta(hours=1)
    main.update(started=begun.isoformat())
    main._held.close()  # killed, and its last child has ended
    numbered.take_over()
    assert not numbered.is_main
    numbered.finish("finished", 0)
    again.take_over()
    assert again.is_main
    again.note("goes on")
    again.finish("finished", 4)
    ended = read_run(again.folder)
    assert ended.exit_code == 4
    assert 3_600 <= ended.seconds < 3_700
    assert ended.notes == ["found", "goes on"]


def test_a_copy_takes_over_in_the_middle_and_hears_the_others(store: Store) -> None:
    """The main copy is killed at the first answer; a numbered copy tells something after it."""
    main, other = (RunRecorder(store, REQUEST, RESOLVED, run_id="r", index=i) for i in (0, 2))
    other.note("before")

    def score(variant: str, suite: str, number: int) -> float:
        if variant == ONE and number == 0:
            main._held.close()
        if variant == TWO and number == 0:
            other.note("after")
        return equal(variant, suite, number)

    bench = FakeRun(store.root, PretendModels(score, 24), recipes=(ONE, TWO), run_id="r")
    notes = bench.run().notes
    other.finish("finished", 0)
    assert read_run(main.folder).status == "finished"
    assert "after" in notes
    assert "before" not in notes  # it is for the main copy that lived then


def run_in_copies(work: Callable[[Path, str, Any], None], root: Path, number: int) -> None:
    """Let so many processes work on one run; all must end well."""
    FakeRun(root).checkpoint  # noqa: B018  # made before the processes start
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(number)
    copies = [context.Process(target=work, args=(root, "r", gate)) for _ in range(number)]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.join(120)
    assert [copy.exitcode for copy in copies] == [0] * number


def run_copy(root: Path, run_id: str, gate: Any) -> None:
    score = lost(2)
    models = PretendModels(
        lambda v, suite, n: score("baseline" if v == TWO else v, suite, n), questions=120
    )
    gate.wait()
    FakeRun(root, models, recipes=(ONE, TWO), run_id=run_id).run()


def run_with_blocks(root: Path, run_id: str, gate: Any) -> None:
    chat = {"kind": "random", "input_tokens": 8, "output_tokens": 4, "seconds": 1}
    chat |= {"arrivals": {"concurrency": 4}}
    ratio = {"min_ratio": 0.8, "workloads": ["chat"], "blocks": 5}
    speed = SpeedPolicy.model_validate({"ratio": ratio, "workloads": {"chat": chat}})
    made = FakeRun(root, PretendModels(equal, 24), recipes=(ONE, TWO), run_id=run_id)
    made.policy = made.policy.model_copy(update={"speed": speed})
    made.hardware = {**made.hardware, "accelerator": "cuda"}
    gate.wait()
    made.run()


def test_two_copies_measure_each_block_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    run_in_copies(run_with_blocks, root, 2)
    store, report = Store(root), read_run(root / "runs" / "r")
    blocks = [BLOCK.typed(record) for record in store.records("block")]
    assert sorted(each.parameters.number for each in blocks) == list(range(5))
    assert {frozenset(each.result.arms) for each in blocks} == {frozenset(("baseline", ONE, TWO))}
    assert [each.speed[0].verdict for each in report.variants] == ["pass", "pass"]
    assert all(not check.differences for check in check_run(report, store))


def test_three_copies_do_every_piece_once(tmp_path: Path) -> None:
    """What each stage is, is what one copy alone makes of it."""
    alone = FakeRun(tmp_path / "alone" / "store", PretendModels(equal, 120), recipes=(ONE, TWO))
    alone.run()
    root = tmp_path / "together" / "store"
    run_in_copies(run_copy, root, 3)
    store = Store(root)
    keys = sorted((each.stage, each.key) for each in store.records())
    assert keys == sorted((each.stage, each.key) for each in alone.store.records())
    record = json.loads((root / "runs" / "r" / "run.json").read_text())
    ran = [(each["stage"], each["key"]) for each in record["stages"] if each["status"] == "ran"]
    assert sorted(ran) == sorted(set(ran))  # none twice
    assert set(ran) <= set(keys)
    assert len(ran) >= len(keys) - 3  # one may end before its last word is read
    assert {each["recipe"]: each["verdict"] for each in record["variants"]} == {
        ONE: "fail",
        TWO: "pass",
    }


def run_descent(root: Path, run_id: str, gate: Any) -> None:
    def score(variant: str, suite: str, number: int) -> float:
        return 0.0 if variant == ONE else equal(variant, suite, number)

    made = FakeRun(root, PretendModels(score, 120), recipes=(TWO, ONE), run_id=run_id)
    made.until_pass = True
    made.sizes = {ONE: 200, TWO: 100}
    gate.wait()
    made.run()


def test_copies_never_ask_below_a_variant_that_may_fail(tmp_path: Path) -> None:
    """One that has nothing else to do may make the smaller one's weights."""
    root = tmp_path / "store"
    run_in_copies(run_descent, root, 3)
    served = [record.variant for record in Store(root).records() if record.stage == "sanity"]
    assert sorted(served) == sorted(["baseline", ONE])
    verdicts = {each.recipe: each.verdict for each in read_run(root / "runs" / "r").variants}
    assert verdicts == {ONE: "fail", TWO: "skipped"}


def test_a_stage_that_another_copy_ends_meanwhile_leaves_no_variant_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeRun(tmp_path / "store").run()
    late, find = iter([True]), Pieces._find_verdicts

    def find_too_early(pieces: Pieces, failures: Failures) -> Iterator[Piece]:
        return iter(()) if next(late, False) else find(pieces, failures)

    monkeypatch.setattr(Pieces, "_find_verdicts", find_too_early)
    report = FakeRun(tmp_path / "store").run()
    assert [each.verdict for each in report.variants] == ["pass"]


def test_a_further_copy_begins_with_the_answers_that_all_wait_for(store: Store) -> None:
    made_before: list[int] = []

    def score(variant: str, suite: str, number: int) -> float:
        made_before.append(len(list(store.records("quantize"))))
        return equal(variant, suite, number)

    main = RunRecorder(store, REQUEST, RESOLVED, run_id="r")
    FakeRun(store.root, PretendModels(score, 24), run_id="r").run()
    main.finish("finished", 0)
    assert (made_before[0], made_before[-1]) == (0, 1)
