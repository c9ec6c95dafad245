from __future__ import annotations

import random
from pathlib import Path

import pytest
from fake_run import ONE, FakeRun, equal
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend_stages import PretendModels
from speed_bench import bench

from artifacts.evidence.verify import check_run
from artifacts.run_record import VariantReport
from eval_gates.speed.rules import MAX_OWN
from pipeline.stages.starts import ServerStart, StartLedger
from prepare.errors import PrepareError, StoreError
from prepare.store import Store


def run_until_judged(run: FakeRun, most: int = 12) -> tuple[VariantReport | None, int]:
    """Repeat the command, as a user does, until there is a verdict."""
    for number in range(1, most + 1):
        try:
            (found,) = run.run().variants
        except PrepareError:
            continue
        if found.verdict != "error":
            return found, number
    return None, most


def starts_of(run: FakeRun) -> list[ServerStart]:
    arm = run.plan().variants[0].stages["first_texts"].key
    return StartLedger(run.store, arm).starts()


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
@settings(max_examples=4)
@given(seed=st.integers(0, 2**20), share=st.sampled_from([0.2, 0.4]), when=st.sampled_from("sl"))
def test_a_server_that_fails_is_not_measured_until_it_works(
    tmp_path_factory: pytest.TempPathFactory, accelerator: str, seed: int, share: float, when: str
) -> None:
    chance = random.Random(seed)
    models = PretendModels(equal, 64)
    models.is_lost = lambda variant, moment: (
        variant == ONE and moment.startswith(when) and chance.random() < share
    )
    run = bench(tmp_path_factory.mktemp("run"), accelerator, models)
    found, _ = run_until_judged(run)
    starts = starts_of(run)
    first = next((n for n, each in enumerate(starts) if each.was_ready), len(starts))
    failed = sum(each.state == "failed" for each in starts[first:])
    if found is None:  # it never answered its questions
        return
    assert (found.verdict == "fail") == (failed >= MAX_OWN)
    assert found.history is not None
    assert found.history.starts.failed == failed
    assert found.history.starts.early == first
    assert failed == 0 or f"in {failed} of" in found.reason
    assert first == 0 or f"in {first} starts before the first good one" in found.reason
    assert all(not check.differences for check in check_run(run.report, Store(run.root)))


def test_starts_that_failed_before_the_first_good_one_are_told(tmp_path: Path) -> None:
    """A server that stays up and starts in the fourth command passed without a word."""
    run = bench(tmp_path, "cpu")
    left = [3]

    def is_lost(variant: str, when: str) -> bool:
        is_next = (variant, when) == (ONE, "start") and left[0] > 0
        left[0] -= is_next
        return is_next

    run.models.is_lost = is_lost
    found, commands = run_until_judged(run)
    assert commands == 4
    assert found is not None
    assert (found.verdict, found.speed[0].server_starts["candidate"].early) == ("pass", 3)
    assert "in 3 starts before the first good one" in found.reason


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_two_failed_starts_of_several_commands_fail_the_gate(
    tmp_path: Path, accelerator: str
) -> None:
    run = bench(tmp_path, accelerator)
    died_now: list[str] = []

    def is_lost(variant: str, when: str) -> bool:
        # The candidate dies, then the baseline, which ends the command.
        other_died = ONE in died_now
        is_next = variant == ("baseline" if other_died else ONE)
        if when == "load" and is_next and variant not in died_now:
            died_now.append(variant)
            return True
        return False

    run.models.is_lost = is_lost
    with pytest.raises(PrepareError):
        run.run()
    run.models.is_lost = lambda variant, when: False
    run.models.dies_once = {ONE}
    found = run.verdict()
    died = [each for each in starts_of(run) if each.state == "failed"]
    (gate,) = found.speed
    assert (len(died), found.verdict, gate.verdict) == (2, "fail", "fail")
    assert gate.server_starts["candidate"].failed == 2
    assert run.verdict() == found


def test_a_server_that_does_not_answer_a_question_failed(tmp_path: Path) -> None:
    """Its process may live on while its engine hangs."""
    run = bench(tmp_path, "cuda")
    run.models.is_lost = lambda variant, when: (variant, when) == (ONE, "ask")
    for _ in range(MAX_OWN):
        assert run.verdict().verdict == "error"
    run.models.is_lost = lambda variant, when: False
    found = run.verdict()
    assert (found.verdict, found.speed[0].server_starts["candidate"].failed) == ("fail", 2)


def test_a_gate_measured_again_counts_its_own_starts(tmp_path: Path) -> None:
    run = bench(tmp_path, "cuda")
    run.models.dies_under_load = {ONE}
    assert run.verdict().verdict == "fail"
    run.models.dies_under_load = set()
    (found,) = run.run(frozenset({"ratio.chat"})).variants
    assert (found.verdict, found.speed[0].server_starts["candidate"].failed) == ("pass", 0)
    assert found.history is not None
    assert (found.history.measurements, found.history.starts.failed) == (1, 2)


def test_a_baseline_that_fails_twice_shows_nothing(tmp_path: Path) -> None:
    run = bench(tmp_path, "cuda")
    run.models.dies_under_load = {"baseline"}
    with pytest.raises(PrepareError):
        run.run()
    found = run.verdict()
    assert (found.verdict, found.speed[0].verdict) == ("undecided", "undecided")


def test_starts_before_the_first_good_one_do_not_count(tmp_path: Path) -> None:
    ledger = StartLedger(Store(tmp_path), "a")
    for _ in range(3):
        ledger.note(ledger.begin("", "r"), "failed", "no CUDA")
    assert (ledger.count().failed, ledger.count().early) == (0, 3)
    start = ledger.note(ledger.begin("m", "r"), "ready")
    ledger.note(ledger.note_measurement(start, "later"), "failed", "it ended")
    assert ledger.count("later").failed == 1
    ledger.note(ledger.begin("m", "r"), "disturbed", "a stranger")
    ledger.begin("m", "r")  # killed
    assert (ledger.count().tried, ledger.count().failed) == (1, 1)
    assert ledger.count("other").tried == 0
    (tmp_path / "starts" / "a" / "000002.json").unlink()
    with pytest.raises(StoreError):
        ledger.count()
