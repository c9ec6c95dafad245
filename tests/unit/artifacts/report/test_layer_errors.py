"""The heat map of layers, from the table that the stage check_weights keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from reported_run import Texts, reported_run

from artifacts.report.figure import UniqueIds
from artifacts.report.layer_errors import layer_figures, place_of
from artifacts.report.run_evidence import RunEvidence


@pytest.mark.parametrize(
    ("module", "place"),
    [
        ("model.layers.3.mlp.up_proj", (3, "mlp.up_proj")),
        ("model.layers.12.mlp.experts.7.w1", (12, "mlp.experts.w1")),
        ("transformer.h.0.attn.c_attn", (0, "attn.c_attn")),
        ("lm_head", (None, "lm_head")),
        ("model.layers.3", (None, "model.layers.3")),
    ],
)
def test_a_modules_place(module: str, place: tuple[int | None, str]) -> None:
    assert place_of(module) == place


def test_the_map(tmp_path: Path) -> None:
    made = reported_run(tmp_path)
    figure = layer_figures(RunEvidence(made.report, made.store), UniqueIds())[0]
    (trace,) = figure.data
    assert trace["x"] == [0, 1, 2, 3]
    assert trace["y"] == ["self_attn.q_proj", "mlp.up_proj"]
    assert trace["z"] == [[30.0, 31.0, None, 33.0], [30.0, 31.0, 32.0, 33.0]]
    assert trace["zmax"] - trace["zmin"] == 6.0
    assert figure.table.rows[0] == ("model.layers.0.self_attn.q_proj", "30.0")
    assert figure.notes[0].startswith("median 31.0 dB; a layer under 25.0 dB")


def test_of_experts_the_worst_is_shown(tmp_path: Path) -> None:
    made = reported_run(tmp_path, Texts(module="model.layers.0.mlp.experts.{layer}.w1"))
    figure = layer_figures(RunEvidence(made.report, made.store), UniqueIds())[0]
    assert figure.data[0]["z"][1] == [30.0, None, None]
    assert "experts" in figure.notes[0]


@pytest.mark.parametrize("content", [None, "", "{", '{"name": "lm_head", "sqnr_db": 3.0}\n'])
def test_no_usable_table_is_no_figure(tmp_path: Path, content: str | None) -> None:
    made = reported_run(tmp_path)
    for file in tmp_path.rglob("layers.jsonl"):
        file.unlink()
        if content is not None:
            file.write_text(content)
    assert layer_figures(RunEvidence(made.report, made.store), UniqueIds()) == []
