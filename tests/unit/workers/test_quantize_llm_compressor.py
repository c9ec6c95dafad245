"""The parts of the llm-compressor worker that need no torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.workers.calibration_blocks import block_facts
from pipeline.workers.moe_experts import expert_count
from pipeline.workers.quantize_awq import OBSERVERS
from recipes.quantizers.awq import AwqQuantization


def test_every_observer_of_a_recipe_is_known() -> None:
    schema = AwqQuantization.model_json_schema()["properties"]["observer"]
    assert set(schema["enum"]) == set(OBSERVERS)


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({}, 0),
        ({"num_local_experts": 8}, 8),
        ({"num_experts": 128, "num_experts_per_tok": 8}, 128),
        ({"n_routed_experts": None}, 0),
        ({"text_config": SimpleNamespace(n_routed_experts=256)}, 256),
        ({"text_config": None, "num_experts": 1}, 1),
    ],
)
def test_experts_by_the_config(config: dict[str, Any], experts: int) -> None:
    assert expert_count(SimpleNamespace(**config)) == experts


def test_facts_about_blocks() -> None:
    facts = block_facts([[1, 2, 3], [4, 5, 6]])
    assert (facts["calibration_blocks"], facts["calibration_tokens"]) == (2, 6)
    assert facts["calibration_digest"] != block_facts([[1, 2, 3], [4, 5, 7]])["calibration_digest"]
