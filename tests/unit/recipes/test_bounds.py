"""Every number that a user writes has a least and a largest value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from recipes.catalog import GpuType
from recipes.policy import Margin, Policy, PromotionRule
from recipes.quantizers.gptq import GptqQuantization
from recipes.schema import Recipe, ServingProfile
from recipes.speed import ThroughputRatioGate

# vLLM's own, whose bounds are the engine's; NaN and infinity are refused there too.
UNBOUNDED = {"engine_arguments", "variant_arguments", "served_with"}


def numbers(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, list):
        for each in node:
            yield from numbers(each, path)
    if not isinstance(node, dict):
        return
    if node.get("type") in ("integer", "number") and "enum" not in node and "const" not in node:
        yield path, node
    for key, value in node.items():
        if key not in UNBOUNDED:
            yield from numbers(value, f"{path}.{key}")


@pytest.mark.parametrize("kind", [Recipe, Policy, ServingProfile, GpuType])
def test_every_number_has_a_least_and_a_largest_value(kind: Any) -> None:
    for path, node in numbers(kind.model_json_schema()):
        assert "minimum" in node or "exclusiveMinimum" in node, path
        assert "maximum" in node or "exclusiveMaximum" in node, path


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (ThroughputRatioGate, {"min_ratio": {"cpu": -1.0}, "workloads": ["chat"]}),
        (ThroughputRatioGate, {"min_ratio": {"cpu": float("nan")}, "workloads": ["chat"]}),
        (ThroughputRatioGate, {"min_ratio": {"cpu": float("-inf")}, "workloads": ["chat"]}),
        (ThroughputRatioGate, {"min_ratio": {"cpu": True}, "workloads": ["chat"]}),
        (ThroughputRatioGate, {"min_ratio": {"cpu": "0.5"}, "workloads": ["chat"]}),
        (Margin, float("nan")),
        (Margin, 1e-320),
        (Margin, {"recovery": float("nan")}),
        (Margin, {"recovery": 1e-300}),
        (PromotionRule, {"alias": "champion", "previous_alias": "champion"}),
        (
            GptqQuantization,
            {"kind": "gptq", "scheme": "W4A16", "calibration": {}, "smaller_group_sizes": [0]},
        ),
    ],
)
def test_what_would_let_everything_pass_or_take_for_ever_is_refused(kind: Any, data: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(data)
