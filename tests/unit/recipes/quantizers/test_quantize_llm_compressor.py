from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipes.quantizers.llm_compressor_worker import layers_of_each_kind
from recipes.quantizers.models import expert_count
from recipes.quantizers.modifiers import divide, matches


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


NORM, ROUTER, UP = "re:.*post_attention_layernorm$", "re:.*mlp.gate$", "re:.*up_proj$"
MODULES_OF_LAYER = ["mlp.up_proj"], ["mlp.gate", "mlp.experts.0.up_proj"]
MODULES = [
    f"model.layers.{layer}.{module}"
    for layer, modules in enumerate(
        [["mlp.up_proj"]] + 11 * [["mlp.gate", "mlp.experts.0.up_proj"]]
    )
    for module in ("post_attention_layernorm", *(MODULES_OF_LAYER[layer > 0]))
]


def test_a_mapping_is_divided_by_kinds_of_block() -> None:
    dense, routed = divide(NORM, [ROUTER, UP], MODULES)
    for (before, layers), blocks in ((dense, {0}), (routed, set(range(1, 12)))):
        for expression in (before, *layers):
            found = {int(n.split(".")[2]) for n in MODULES if matches(expression, n)}
            assert found == blocks
    assert [len(layers) for _, layers in (dense, routed)] == [1, 2]


def test_a_mapping_that_fits_every_block_stays() -> None:
    assert divide(NORM, [UP], MODULES) == [(NORM, [UP])]
    assert divide(NORM, ["re:.*absent$"], MODULES) == []


def test_a_mapping_whose_first_layer_some_blocks_lack() -> None:
    """Gemma 4's layers of full attention take their keys as their values."""
    modules = {0: ("v_proj", "o_proj"), 1: ("o_proj",), 2: ("v_proj", "o_proj")}
    names = [f"model.layers.{n}.self_attn.{each}" for n, found in modules.items() for each in found]
    ((before, (after,)),) = divide("re:.*v_proj$", ["re:.*o_proj$"], names)
    for expression in (before, after):
        blocks = {int(name.split(".")[2]) for name in names if matches(expression, name)}
        assert blocks == {0, 2}


@pytest.mark.parametrize(
    ("config", "modules", "layers"),
    [
        ({}, ["mlp.up_proj"] * 4, 1),
        ({}, ["mlp.up_proj"] * 3 + ["mlp.experts.7.up_proj"] * 9, 4),
        ({"layer_types": ["sliding"] * 5 + ["full"] * 2}, ["mlp.up_proj"] * 7, 6),
        ({"text_config": {"layer_types": ["linear", "full"]}}, ["mlp.up_proj"] * 2, 2),
        ({"num_hidden_layers": 2}, ["mlp.up_proj"] * 2 + ["mtp.up_proj"], 1),
    ],
)
def test_layers_to_try(
    tmp_path: Path, config: dict[str, Any], modules: list[str], layers: int
) -> None:
    tensors = {
        f"model.layers.{number}.{module}.weight": {
            "dtype": "BF16",
            "shape": [1],
            "data_offsets": [2 * number, 2 * number + 2],
        }
        for number, module in enumerate(modules)
    }
    header = json.dumps(tensors).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(2 * len(modules))
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert layers_of_each_kind(tmp_path) == layers
