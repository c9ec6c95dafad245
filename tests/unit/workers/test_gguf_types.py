"""Types of tensors in GGUF files, as llama.cpp's own program chose them (llama_model_quantize).

The expected types are those of llama.cpp b10434 for SmolLM2-135M, whose rows of 576 columns take no
super-blocks of 256, and whose `ffn_down` has 1,536 columns.
"""

from __future__ import annotations

import pytest

from pipeline.workers.gguf_types import MOST, ModelFacts, choose_type
from recipes.quantizers.gguf import FLOORS_DB, TYPES

DEMO = ModelFacts(layers=30, has_output=False, grouped=3)
WIDE = ModelFacts(layers=32, has_output=True, grouped=4)
NARROW_ROW, WIDE_ROW = (576, 576), (576, 1536)


@pytest.mark.parametrize(
    ("kind", "narrow", "wide", "embedding"),
    [
        ("Q8_0", "Q8_0", {"Q8_0"}, "Q8_0"),
        ("Q6_K", "Q8_0", {"Q6_K"}, "Q8_0"),
        ("Q5_K_M", "Q5_1", {"Q5_K", "Q6_K"}, "Q8_0"),
        ("Q4_K_M", "Q5_0", {"Q4_K", "Q6_K"}, "Q8_0"),
        ("Q3_K_M", "Q4_0", {"Q4_K", "Q5_K"}, "Q8_0"),
        ("Q2_K", "Q4_0", {"Q3_K"}, "Q8_0"),
    ],
)
def test_types_of_the_demo(kind: str, narrow: str, wide: set[str], embedding: str) -> None:
    assert choose_type(kind, "blk.3.attn_q.weight", NARROW_ROW, DEMO) == narrow
    found = {choose_type(kind, f"blk.{n}.ffn_down.weight", WIDE_ROW, DEMO) for n in range(30)}
    assert found == wide
    assert choose_type(kind, "token_embd.weight", (49152, 576), DEMO) == embedding


def test_layers_with_more_bits() -> None:
    names = [f"blk.{number}.attn_v.weight" for number in range(32)]
    more = [
        n
        for n, name in enumerate(names)
        if choose_type("Q4_K_M", name, (1024, 4096), WIDE) == "Q6_K"
    ]
    assert more == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]


@pytest.mark.parametrize("kind", MOST)
def test_what_stays_as_it_is(kind: str) -> None:
    assert choose_type(kind, "blk.0.attn_norm.weight", (576,), WIDE) is None
    assert choose_type(kind, "blk.0.ffn_gate_inp.weight", (8, 4096), WIDE) is None
    assert choose_type(kind, "blk.0.attn_q.bias", (4096,), WIDE) is None
    assert choose_type(kind, "blk.0.attn_q.weight", (64, 4090), WIDE) is None


def test_an_output_of_its_own_has_more_bits_than_the_embedding() -> None:
    assert choose_type("Q2_K", "output.weight", (4096, 4096), WIDE) == "Q6_K"
    assert choose_type("Q2_K", "token_embd.weight", (4096, 4096), WIDE) == "Q2_K"


def test_values_of_grouped_heads() -> None:
    name, shape = "blk.9.attn_v.weight", (1024, 4096)
    assert choose_type("Q2_K", name, shape, WIDE) == "Q4_K"
    assert choose_type("Q2_K", name, shape, ModelFacts(32, True, 1)) == "Q3_K"


def test_every_kind_of_file_has_a_recipes_type_and_floors() -> None:
    assert MOST.keys() == TYPES.keys()
    for kind in MOST:
        for name in ("attn_v", "attn_output", "ffn_down", "ffn_up", "attn_qkv"):
            for shape in (NARROW_ROW, (1024, 4096)):
                for layer in range(32):
                    found = choose_type(kind, f"blk.{layer}.{name}.weight", shape, WIDE)
                    assert FLOORS_DB[found or ""] >= FLOORS_DB[TYPES[kind].lowest]
