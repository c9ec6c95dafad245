"""Seeds of samples; the lm-eval task itself is run by the end-to-end tests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eval_gates.suites.fixed_task import sample_seed

NAMES = [f"HumanEval/{number}" for number in range(164)]


def test_no_two_samples_share_a_seed() -> None:
    seeds = {sample_seed(name, number) for name in NAMES for number in range(16)}
    assert len(seeds) == 164 * 16


@given(st.text(), st.integers(0, 1000))
def test_a_server_takes_it_and_it_stays(question: str, number: int) -> None:
    seed = sample_seed(question, number)
    assert 0 <= seed < 2**31
    assert seed == sample_seed(question, number)
