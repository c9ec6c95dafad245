"""Which of two changes costs what: effects, bounds, interaction."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_gates.attribution import AttributionReport, attribute
from eval_gates.rows import Answer

scores = st.lists(
    st.tuples(*(st.floats(0, 1, allow_subnormal=False) for _ in range(4))), min_size=1, max_size=12
)


def rows(values: list[float]) -> list[Answer]:
    return [Answer(str(number), "p", value) for number, value in enumerate(values)]


def compared(*cells: list[Answer]) -> AttributionReport:
    """Answers of the baseline, the weights, the KV cache and both."""
    named = dict(zip(("baseline", "weights", "kv_cache", "both"), cells, strict=True))
    return attribute("quiz", **named, alpha=0.05, kv_dtypes=("auto", "fp8"))


def attributed(*cells: list[float]) -> AttributionReport:
    return compared(*map(rows, cells))


def test_what_the_weights_lost_is_told_from_what_the_cache_lost() -> None:
    right = [1.0] * 400
    lost = [float(i % 5 != 0) for i in range(400)]
    found = attributed(right, lost, right, lost)
    assert found.weights.difference == pytest.approx(-0.2)
    assert found.weights.lower <= -0.2 <= found.weights.upper < 0
    assert found.kv_cache.difference == 0
    assert found.kv_cache.lower < 0 < found.kv_cache.upper
    assert found.interaction.difference == 0
    assert found.weights.error == pytest.approx(0.4 / 20, rel=0.01)
    baseline, weights, cache, *_ = found.rows
    assert (baseline["score"], weights["score"]) == ("100.0 %", "80.0 %")
    assert weights["difference, points"] == "-20.0 +- 2.0"
    assert cache["difference, points"] == "0.0 +- 0.0"


def test_nats_are_told_with_their_errors() -> None:
    cells = [[replace(row, nats=n) for row in rows([1.0, 0.5])] for n in (0.1, 0.2, 0.3, 0.4)]
    found = compared(*cells)
    assert found.weights.nats == pytest.approx(0.1)
    assert found.both.nats == pytest.approx(0.3)
    assert found.interaction.nats == pytest.approx(0.0)
    assert found.is_cache_read


def test_a_cache_that_prefill_does_not_read_is_not_measured() -> None:
    cells = [[replace(row, nats=n) for row in rows([1.0, 0.5])] for n in (0.1, 0.2, 0.1, 0.2)]
    found = compared(*cells)
    assert not found.is_cache_read
    assert "not measured" in found.rows[2]["difference, points"]
    assert not any(map(found.rows[2].get, ("score", "bounds", "nats a token lost")))


def test_two_changes_that_are_harmless_alone_interact() -> None:
    right, wrong = [1.0] * 300, [0.0] * 300
    found = attributed(right, right, right, wrong)
    assert found.both.difference == -1
    assert found.interaction.difference == -1
    assert found.interaction.upper < 0


def test_cells_that_were_asked_something_else_are_not_compared() -> None:
    with pytest.raises(ValueError, match="KV cache"):
        attributed([1.0, 1.0], [1.0, 1.0], [1.0], [1.0, 1.0])


@given(scores)
def test_the_parts_add_up_and_lie_within_their_bounds(cells: list[tuple[float, ...]]) -> None:
    found = attributed(*(list(cell) for cell in zip(*cells, strict=True)))
    parts = (found.weights, found.kv_cache, found.interaction)
    assert sum(each.difference for each in parts) == pytest.approx(found.both.difference, abs=1e-9)
    for each in (*parts, found.both):
        assert each.lower - 1e-9 <= each.difference <= each.upper + 1e-9
