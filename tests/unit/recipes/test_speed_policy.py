"""A policy's `speed`: what it may ask, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from recipes.speed import SloGate, SpeedPolicy, ThroughputRatioGate

RATIO: dict[str, Any] = {"min_ratio": 1.2, "workloads": ["chat"]}
SLO: dict[str, Any] = {"workload": "support", "rate": 12, "limits": {"ttft_ms_p95": 800}}


def test_a_minimum_is_one_number_or_by_accelerator() -> None:
    assert ThroughputRatioGate(workloads=["chat"]).minimum_on(None) == 0.95
    one = ThroughputRatioGate.model_validate(RATIO)
    assert [one.minimum_on(each) for each in ("cpu", "cuda", None)] == [1.2, 1.2, 1.2]
    two = ThroughputRatioGate.model_validate({**RATIO, "min_ratio": {"cuda": 1.0, "cpu": 0.02}})
    assert two.minimum_on("cpu") == 0.02
    assert two.minimum_on(None) == 1.0
    with pytest.raises(ValueError, match="endpoints"):
        ThroughputRatioGate.model_validate({**RATIO, "min_ratio": {"cpu": 1.0}}).minimum_on(None)
    with pytest.raises(ValueError, match="cpu"):
        ThroughputRatioGate.model_validate({**RATIO, "min_ratio": {"cuda": 1.0}}).minimum_on("cpu")


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.booleans())
def test_numbers_have_bounds(number: float) -> None:
    for model, good, keys in (
        (ThroughputRatioGate, RATIO, ("min_ratio", "blocks")),
        (SloGate, SLO, ("rate", "starts")),
    ):
        for key in keys:
            try:
                taken = model.model_validate({**good, key: number})
            except ValidationError as error:
                named = error.errors()[0]["loc"][0]
            else:
                named, within = key, 0 < number <= 1e5 and not isinstance(number, bool)
                assert within
                assert type(taken).model_validate(taken.model_dump()) == taken
            assert named == key


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"rate": 0}, "rate"),
        ({"limits": {}}, "limits"),
        ({"limits": {"errors": 0}}, "limits"),
        ({"limits": {"ttft_ms_p95": 0}}, "limits"),
        ({"limits": {"ttft_ms_p95": 800, "errors": 0.5}}, "limits"),
        ({"limits": {"ttft_p95": 800}}, "limits"),
        ({"starts": 2}, "starts"),
        ({"compare": "baseline"}, "compare"),
        ({"workload": "a b"}, "workload"),
        ({"rates": [1]}, "rates"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_limits_are_refused_by_name(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SloGate.model_validate({**SLO, **change})
    (fault, *_) = caught.value.errors()
    assert key in (*fault["loc"], *fault["msg"].replace(".", " ").split())


@pytest.mark.parametrize(
    "wrong",
    [{}, {"ratio": {**RATIO, "workloads": []}}, {"ratio": {**RATIO, "workloads": ["a", "a"]}}],
    ids=["nothing", "no workload", "one twice"],
)
def test_a_speed_gate_reports_something(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SpeedPolicy.model_validate(wrong)
