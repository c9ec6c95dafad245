"""How long rounds last, and that their requests are a Poisson process."""

from __future__ import annotations

import numpy as np
import pytest
from measured_loads import queued_round, round_of

from eval_gates.speed.load_run import MAX_REQUESTS, LoadRun
from eval_gates.speed.rounds import Timing, arrival_times, is_too_short, next_timing

RATE = {"rate": 1.0, "concurrency": None}
WORKLOAD = {"arrivals": RATE, "seconds": 12.0, "warmup_seconds": 3.0}


def test_the_number_of_requests_of_a_round_is_poisson() -> None:
    """Mean and variance are rate x time, also of a window in it."""
    times = [np.array(arrival_times(seed, 1.5, 50.0)) for seed in range(4000)]
    counts = np.array([((each >= 10) & (each < 40)).sum() for each in times])
    assert counts.mean() == pytest.approx(45, abs=0.4)
    assert counts.var() == pytest.approx(45, rel=0.08)
    assert arrival_times(7, 1.5, 30.0) == arrival_times(7, 1.5, 30.0)
    assert arrival_times(7, 1.5, 30.0) == sorted(arrival_times(7, 1.5, 30.0))


def test_no_round_is_empty_and_none_is_larger_than_a_load_may_be() -> None:
    assert min(len(arrival_times(seed, 1e-3, 1.0)) for seed in range(50)) == 1
    assert len(arrival_times(1, 1e5, 100.0)) == MAX_REQUESTS


def test_a_round_lasts_ten_answers_of_those_before_it() -> None:
    assert next_timing(WORKLOAD, []) == Timing(3.0, 12.0)
    # Answers of a second: a quarter more than ten of them, and two before.
    assert next_timing(WORKLOAD, [round_of(0)]) == Timing(3.0, 13.0)
    assert next_timing({**WORKLOAD, "seconds": 30.0}, [round_of(0)]) == Timing(3.0, 30.0)
    assert next_timing({**WORKLOAD, "arrivals": {**RATE, "concurrency": 4}}, []) is None


def test_what_cannot_be_longer_keeps_its_seconds() -> None:
    fast = {**RATE, "rate": 4_000.0}
    assert next_timing({**WORKLOAD, "arrivals": fast}, [round_of(0)]) == Timing(3.0, 12.0)


def test_a_queue_makes_no_round_longer() -> None:
    """Answers of an over-saturated server are as long as its rounds."""
    queued = queued_round(np.random.default_rng(1), 8, 2.0)
    assert is_too_short(queued)
    assert next_timing(WORKLOAD, [queued]) == Timing(3.0, 12.0)


@pytest.mark.parametrize(("slots", "load"), [(8, 0.7), (64, 0.85)])
def test_the_rounds_of_a_steady_server_are_long_enough(slots: int, load: float) -> None:
    chance = np.random.default_rng(2)
    loads: list[LoadRun] = [queued_round(chance, slots, load) for _ in range(4)]
    found = next_timing({**WORKLOAD, "seconds": 1.0}, loads)
    assert found is not None
    assert not any(
        is_too_short(each.model_copy(update={"measured_s": found.measured_s})) for each in loads
    )
