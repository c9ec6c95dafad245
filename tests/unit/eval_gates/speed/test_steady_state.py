"""The steady state of a load, by time, for any start and end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_loads import load_in_waves

from eval_gates.speed.steady_state import (
    NoSteadyStateError,
    count_waves,
    latencies,
    output_rate,
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
