from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from prepare.errors import StageError
from recipes.quantizers.autoawq_worker import (
    check_rows,
    keep_sources_config,
    words_left_out,
)


def linear(rows: int) -> SimpleNamespace:
    return SimpleNamespace(out_features=rows)


def test_rows_that_cannot_be_packed() -> None:
    check_rows([linear(64)])
    with pytest.raises(StageError) as caught:
        check_rows([linear(64), linear(12)])
    assert caught.value.where == "quantization.kind autoawq"
    assert "awq-w4a16" in caught.value.hint


class TestLeftOut:
    DENSE = ("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.down_proj")
    EXPERTS = tuple(
        f"model.layers.{layer}.mlp.{part}"
        for layer in range(2)
        for part in ("gate", "experts.0.gate_proj", "experts.0.down_proj")
    )

    def test_routers(self) -> None:
        words = words_left_out([*self.EXPERTS], ["lm_head", r"re:(.*\.)?(gate)(\..*)?$"])
        assert words == ["mlp.gate"]

    def test_a_router_beside_a_dense_layers_gate(self) -> None:
        """The word for the router is part of `mlp.gate_proj` too."""
        with pytest.raises(StageError, match=r"model\.layers\.0\.mlp\.gate_proj"):
            words_left_out([*self.DENSE, "model.layers.1.mlp.gate"], ["*.mlp.gate"])

    def test_anything_else_inside(self) -> None:
        with pytest.raises(StageError, match=r"0\.mlp\.down_proj") as caught:
            words_left_out([*self.DENSE], ["lm_head", "*.down_proj"])
        assert "awq-w4a16" in caught.value.hint


def test_the_sources_config_is_kept(tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    source.mkdir()
    output.mkdir()
    config = {"model_type": "llama", "rope_parameters": {"rope_theta": 1e5}, "of_version_5": 1}
    (source / "config.json").write_text(json.dumps(config))
    saved = {"model_type": "llama", "rope_theta": 1e5, "quantization_config": {"bits": 4}}
    (output / "config.json").write_text(json.dumps(saved))
    keep_sources_config(source, output)
    kept = json.loads((output / "config.json").read_text())
    assert kept == {**config, "quantization_config": {"bits": 4}}
