"""Several gates and several variants at once."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.statistics.multiplicity import all_gates_p, holm, holm_adjusted

P_VALUES = st.dictionaries(st.text(max_size=3), st.floats(0, 1), min_size=1, max_size=8)


def test_adjusted_p_values_of_a_worked_example() -> None:
    adjusted = holm_adjusted({"fp8": 0.01, "awq": 0.04, "int8": 0.03, "w4": 0.005})
    assert adjusted == pytest.approx({"fp8": 0.03, "awq": 0.06, "int8": 0.06, "w4": 0.02})
    assert list(adjusted) == ["fp8", "awq", "int8", "w4"]


def test_holm_is_less_strict_than_bonferroni_and_stricter_than_none() -> None:
    passes = holm({"a": 0.01, "b": 0.02, "c": 0.04}, 0.05)
    assert passes == {"a": True, "b": True, "c": True}  # Bonferroni would pass only a
    assert holm({"a": 0.03, "b": 0.04}, 0.05) == {"a": False, "b": False}


def test_one_variant_needs_no_correction() -> None:
    assert holm({"fp8": 0.05}, 0.05) == {"fp8": True}
    assert holm_adjusted({}) == {}


@given(P_VALUES, st.floats(0.001, 0.5))
def test_holm_never_passes_what_fails_alone(p_values: dict[str, float], alpha: float) -> None:
    adjusted, passes = holm_adjusted(p_values), holm(p_values, alpha)
    for name, p in p_values.items():
        assert p <= adjusted[name] <= 1
        assert not passes[name] or p <= alpha
    if min(p_values.values()) * len(p_values) <= alpha:
        assert any(passes.values())


def test_a_family_of_inferior_variants_rarely_promotes_any() -> None:
    p_values = np.random.default_rng(3).random((4000, 5))
    names = "abcde"
    some = [any(holm(dict(zip(names, row, strict=True)), 0.05).values()) for row in p_values]
    assert np.mean(some) <= 0.06
    assert np.mean((p_values <= 0.05).any(axis=1)) > 0.2  # uncorrected, as a contrast


def test_all_gates_pass_only_as_surely_as_the_least_sure() -> None:
    assert all_gates_p({"mmlu": 0.001, "rouge": 0.04}) == 0.04
    with pytest.raises(ValueError, match="no gates"):
        all_gates_p({})


@pytest.mark.parametrize("bad", [math.nan, -0.1, 1.1])
def test_missing_p_values_are_refused(bad: float) -> None:
    for judge in (holm_adjusted, all_gates_p):
        with pytest.raises(ValueError, match="mmlu"):
            judge({"mmlu": bad})
    with pytest.raises(ValueError, match="alpha"):
        holm({"mmlu": 0.5}, 0)
