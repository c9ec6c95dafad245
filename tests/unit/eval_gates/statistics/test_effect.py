"""What one change costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.statistics.effect import measure_effect

scores = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12)


def test_a_loss_has_its_error_and_its_bounds() -> None:
    right, lost = [1.0] * 400, [float(i % 5 != 0) for i in range(400)]
    found = measure_effect([right, lost], [[0.1] * 400, [0.3] * 400], alpha=0.05)
    assert found.difference == pytest.approx(-0.2)
    assert found.lower <= -0.2 <= found.upper < 0
    assert found.error == pytest.approx(0.4 / 20, rel=0.01)
    assert found.nats == pytest.approx(0.2)
    assert found.cells["score"] == "80.0 %"
    assert found.cells["difference, points"] == "-20.0 +- 2.0"


@given(scores)
def test_it_lies_within_its_bounds(pairs: list[tuple[float, float]]) -> None:
    sides = [list(side) for side in zip(*pairs, strict=True)]
    found = measure_effect(sides, sides, alpha=0.05)
    assert found.lower - 1e-9 <= found.difference <= found.upper + 1e-9
    assert found.nats == pytest.approx(found.difference)
