"""Several gates together; levels are in tests/unit/artifacts/test_attempts.py."""

import math

import pytest

from eval_gates.statistics.multiplicity import largest_p_value


def test_all_gates_pass_only_as_surely_as_the_least_sure() -> None:
    assert largest_p_value({"mmlu": 0.001, "rouge": 0.04}) == 0.04
    with pytest.raises(ValueError, match="no gates"):
        largest_p_value({})


@pytest.mark.parametrize("bad", [math.nan, -0.1, 1.1])
def test_missing_p_values_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="mmlu"):
        largest_p_value({"mmlu": bad})
