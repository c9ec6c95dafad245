"""Modules that vLLM stores as one matrix, and that therefore have one format."""

from __future__ import annotations

import pytest

from recipes.fused_sets import SIBLINGS, find_split

ATTENTION = "model.layers.3.self_attn"
EXPERTS = "model.layers.3.mlp.experts"


@pytest.mark.parametrize("names", SIBLINGS)
def test_each_set_has_one_format(names: tuple[str, ...]) -> None:
    forms = {f"model.layers.0.x.{name}": "fp8" for name in names}
    assert find_split(forms) is None
    last = f"model.layers.0.x.{names[-1]}"
    assert find_split(forms | {last: "fp4"}) == (f"model.layers.0.x.{names[0]}", last)
    assert find_split(forms | {last: None}) is not None  # in 16 bits


def test_experts_of_a_layer_have_one_format() -> None:
    forms = {f"{EXPERTS}.{n}.{name}": "fp4" for n in range(3) for name in ("w1", "down_proj")}
    assert find_split(forms) is None
    last = f"{EXPERTS}.2.down_proj"
    assert find_split(forms | {last: "fp8"}) == (f"{EXPERTS}.0.w1", last)


def test_what_is_not_fused_may_differ() -> None:
    forms = {
        f"{ATTENTION}.q_proj": "fp8",
        f"{ATTENTION}.o_proj": "fp4",
        "model.layers.4.self_attn.q_proj": "fp4",
        "model.layers.3.mlp.shared_experts.up_proj": "fp8",
        f"{EXPERTS}.0.up_proj": "fp4",
        "lm_head": None,
    }
    assert find_split(forms) is None
