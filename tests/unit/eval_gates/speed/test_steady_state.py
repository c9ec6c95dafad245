"""The steady state of a load, by time, for any start and end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_loads import load_in_waves, queued_round, round_of

from eval_gates.speed.steady_state import (
    NoSteadyStateError,
    count_flow,
    count_waves,
    is_over_saturated,
    latencies,
    output_rate,
    percentiles,
    steady_window,
)


def test_the_first_wave_and_the_last_are_cut_off() -> None:
    load = load_in_waves(10, 4, seconds=2.0)
    assert steady_window(load) == (2.0, 18.0)
    assert count_waves(load) == 8.0


@given(st.integers(3, 12), st.integers(1, 6), st.floats(0.1, 50), st.integers(2, 200))
def test_tokens_in_it_are_counted_by_time(
    waves: int, in_flight: int, seconds: float, tokens: int
) -> None:
    """Whole waves in it, so all their tokens."""
    load = load_in_waves(waves, in_flight, seconds=seconds, tokens=tokens)
    assert output_rate(load) == pytest.approx(in_flight * tokens / seconds, rel=1e-6)


def test_a_slow_start_and_a_slow_end_do_not_count() -> None:
    requests = load_in_waves(10, 4).requests.model_dump()
    later = 7.0
    for column in ("start_s", "end_s"):
        requests[column][4:] = [each + later for each in requests[column][4:]]
    requests["end_s"][:4] = [1.0 + later] * 4
    requests["end_s"][-4:] = [40.0] * 4
    assert output_rate(load_in_waves(requests=requests)) == pytest.approx(40.0, rel=0.01)


def test_a_declared_time_is_taken_as_it_is() -> None:
    rate = {"arrivals": "rate", "rate": 4.0, "concurrency": None}
    load = load_in_waves(8, 4, **rate, warmup_s=2.5, measured_s=4.0)
    assert steady_window(load) == (2.5, 6.5)
    assert latencies(load)[0]["ttft_ms"].shape == count_flow(load)[:1] == (16,)


@pytest.mark.parametrize("slots", [1, 64])
@pytest.mark.parametrize(("load", "least", "most"), [(0.85, 0, 0.1), (1.3, 0.75, 1)])
def test_a_queue_that_comes_and_goes_is_a_steady_servers(
    slots: int, load: float, least: float, most: float
) -> None:
    chance = np.random.default_rng(7)
    found = [is_over_saturated(queued_round(chance, slots, load)) for _ in range(20)]
    assert least <= np.mean(found) <= most


def test_a_percentile_is_too_low_in_half_of_the_loads() -> None:
    """P95 of 20 requests; a linear one is too low in three of four."""
    chance, low = np.random.default_rng(4), 0
    for _ in range(400):
        requests = round_of(0).requests.model_dump()
        requests["ttft_s"] = chance.exponential(1, 36).tolist()
        found = percentiles(round_of(0, requests=requests), ["ttft_ms_p95"])
        low += found["ttft_ms_p95"] < 1e3 * np.log(20)
    assert low / 400 == pytest.approx(0.5, abs=0.075)


@pytest.mark.parametrize("waves", [1])
def test_one_wave_has_no_steady_part(waves: int) -> None:
    load = load_in_waves(waves)
    for read in (steady_window, output_rate, latencies, count_waves):
        with pytest.raises(NoSteadyStateError):
            read(load)


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    requests = load_in_waves(4, 2).requests.model_dump()
    requests["output_tokens"] = [1] * 8
    requests["end_s"] = [
        s + t for s, t in zip(requests["start_s"], requests["ttft_s"], strict=True)
    ]
    load = load_in_waves(4, 2, requests=requests)
    assert latencies(load)[0]["tpot_ms"].size == 0
    assert output_rate(load) > 0
