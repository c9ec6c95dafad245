"""What an engine's processes report of its KV cache, and what refuses a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_checkpoint import safetensors

from prepare.errors import ServingError
from recipes.engines.kv_report import KvReport, read_report
from recipes.engines.vllm import Vllm
from recipes.weights.kv_scales import check_cache

VLLM = Vllm()
RECORDED = json.loads((Path(__file__).parent / "vllm_reports.json").read_text())
"""By version and format, what vLLM's objects told: `tests/e2e/test_kv_objects.py` wrote it."""
KEYS = "model.layers.{}.self_attn.k_scale"


def layer(**changes: Any) -> dict[str, Any]:
    told = {
        "asked": "fp8",
        "stored": "uint8",
        "bytes": 384.0,
        "backend": "FLASH_ATTN",
        "k_scale": [1.0, 1.0],
        "v_scale": [1.0, 1.0],
        "is_computed": False,
    }
    return {**told, **changes}


def report(*layers: dict[str, Any]) -> KvReport:
    named = {f"model.layers.{n}.self_attn.attn": told for n, told in enumerate(layers)}
    return KvReport.model_validate({"version": "0.33.0", "layers": named})


def plain() -> dict[str, Any]:
    return layer(asked="auto", stored="bfloat16")


@pytest.mark.parametrize(
    ("layers", "form", "scales"),
    [
        ([plain(), plain()], "bfloat16", "none"),
        ([layer(), layer()], "fp8", "1.0"),
        ([layer(), plain()], "bfloat16 in 1 layers and fp8 in 1 layers", "1.0"),
        ([layer(asked="fp8_per_token_head")], "fp8_per_token_head", "of each token and head"),
        ([layer(is_computed=True)], "fp8", "computed by the engine from its first tokens"),
        (
            [layer(k_scale=[0.5, 0.25], v_scale=[1.0, 1.0]), layer()],
            "fp8",
            "keys 0.25 to 1 and values 1 to 1",
        ),
    ],
)
def test_what_is_told(layers: list[dict[str, Any]], form: str, scales: str) -> None:
    facts = report(*layers).facts()
    assert facts == {
        "kv_bytes_a_token": str(384 * len(layers)),
        "kv_cache": form,
        "kv_scales": scales,
        "attention": "FLASH_ATTN",
    }


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0", "0.33.0"])
@pytest.mark.parametrize(
    ("asked", "form", "scales"),
    [
        ("auto", "bfloat16", "none"),
        ("bfloat16", "bfloat16", "none"),
        ("fp8", "fp8", "keys 0.5 to 0.5 and values 0.25 to 0.25"),
        ("fp8_e4m3", "fp8_e4m3", "1.0"),
        ("fp8_per_token_head", "fp8_per_token_head", "of each token and head"),
        ("int8_per_token_head", "int8_per_token_head", "of each token and head"),
    ],
)
def test_each_version_of_the_engine_is_read(
    version: str, asked: str, form: str, scales: str
) -> None:
    told = KvReport.model_validate(RECORDED[version][asked])
    facts = told.facts()
    assert told.version == version
    assert told.has_format(asked) or asked == "auto"
    assert (facts["kv_cache"], facts["kv_scales"]) == (form, scales)
    # 2 layers, 2 heads of 64, keys and values; a version may store scales with the values
    values = 2 * 2 * 64 * 2
    plain = 2.0 * values if form == "bfloat16" else 1.0 * values
    assert plain <= float(facts["kv_bytes_a_token"]) <= 1.1 * plain


class TestReports:
    def test_processes_tell_their_own_layers(self, tmp_path: Path) -> None:
        for number in range(2):
            told = {"version": "0.33.0", "layers": {f"layers.{number}.attn": layer()}}
            (tmp_path / f"report.{number}.json").write_text(json.dumps(told))
        found = read_report(tmp_path)
        assert found is not None
        assert list(found.layers) == ["layers.0.attn", "layers.1.attn"]

    @pytest.mark.parametrize("lost", [0, 1])
    def test_scales_that_one_process_of_a_layer_lost_are_lost(
        self, tmp_path: Path, lost: int
    ) -> None:
        """As with tensor parallelism: each process has some heads of every layer."""
        for number in range(2):
            scales = [1.0, 1.0] if number == lost else [0.25, 0.5]
            told = {"version": "0.33.0", "layers": {"layers.0.attn": layer(k_scale=scales)}}
            (tmp_path / f"report.{number}.json").write_text(json.dumps(told))
        joined = read_report(tmp_path)
        assert joined is not None
        assert joined.layers["layers.0.attn"].k_scale == [1.0, 1.0]

    def test_processes_that_store_a_layer_otherwise(self, tmp_path: Path) -> None:
        for number, told_layer in enumerate((layer(), plain())):
            told = {"version": "0.33.0", "layers": {"layers.0.attn": told_layer}}
            (tmp_path / f"report.{number}.json").write_text(json.dumps(told))
        with pytest.raises(ServingError):
            read_report(tmp_path)

    def test_heads_of_several_processes(self, tmp_path: Path) -> None:
        for number, scales in enumerate(([0.25, 0.5], [0.125, 0.25])):
            told = {"version": "0.33.0", "layers": {"layers.0.attn": layer(v_scale=scales)}}
            (tmp_path / f"report.{number}.json").write_text(json.dumps(told))
        joined = read_report(tmp_path)
        assert joined is not None
        assert joined.layers["layers.0.attn"].v_scale == [0.125, 0.5]

    def test_none(self, tmp_path: Path) -> None:
        assert read_report(tmp_path) is None

    @pytest.mark.parametrize("text", ["", "[]", '{"version": "1", "layers": {}}', "{" * 10_000])
    def test_damaged(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "report.1.json").write_text(text)
        with pytest.raises(ServingError) as caught:
            read_report(tmp_path)
        assert caught.value.where == str(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two layers with a scale of 0 each."""
    folder = tmp_path / "weights"
    folder.mkdir()
    stored: dict[str, tuple[str, tuple[int, ...]]] = {
        KEYS.format(number): ("F32", (1,)) for number in range(2)
    }
    (folder / "model.safetensors").write_bytes(safetensors(stored))
    return folder


SCALED = layer(k_scale=[0.5, 0.5])


@pytest.mark.parametrize(
    ("layers", "lost"),
    [
        ([SCALED, SCALED], None),
        ([SCALED, layer()], 1),
        ([layer(), SCALED], 0),
        ([layer(), layer(is_computed=True)], None),
        ([plain(), plain()], None),  # a cache of 16 bits has no scales
        ([layer(asked="fp8_per_token_head")], None),
    ],
)
def test_a_scale_that_the_engine_replaces_is_named(
    model: Path, layers: list[dict[str, Any]], lost: int | None
) -> None:
    told = report(*layers)
    if lost is None:
        check_cache(model, told, "", VLLM, "auto")
        return
    with pytest.raises(ServingError) as caught:
        check_cache(model, told, "", VLLM, "auto")
    assert KEYS.format(lost) in caught.value.message
    assert f"model.layers.{lost}.self_attn.attn" in caught.value.message
    assert caught.value.where == str(model)


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0", "0.33.0"])
def test_scales_that_a_version_did_not_load_are_named(model: Path, version: str) -> None:
    """By what that version's own objects told: scales as loaded, and as they are without any."""
    check_cache(model, KvReport.model_validate(RECORDED[version]["fp8"]), "", VLLM, "fp8")
    unloaded = KvReport.model_validate(RECORDED[version]["fp8_e4m3"])
    with pytest.raises(ServingError) as caught:
        check_cache(model, unloaded, "", VLLM, "fp8")
    assert KEYS.format(0) in caught.value.message
    assert "model.layers.0.self_attn.attn" in caught.value.message


def test_one_scale_for_both_that_the_engine_takes_for_keys_alone(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.kv_scale"
    (tmp_path / "model.safetensors").write_bytes(safetensors({name: ("F32", (1,))}))
    with pytest.raises(ServingError) as caught:
        check_cache(tmp_path, report(SCALED), "", VLLM, "fp8")
    assert name in caught.value.message
    assert "values" in caught.value.message


def test_a_log_that_a_checkpoint_forged_does_not_count(model: Path) -> None:
    forged = "WARNING Using KV cache scaling factor 1.0 for fp8_e4m3"
    check_cache(model, report(SCALED, SCALED), forged, VLLM, "fp8")
    with pytest.raises(ServingError):  # of an engine that tells nothing else
        check_cache(model, None, forged, VLLM, "fp8")


@pytest.mark.parametrize(
    ("asked", "layers", "is_refused"),
    [
        ("fp8", [plain()], True),
        ("fp8", [layer(stored="bfloat16")], True),  # the engine's word, against what it stores
        ("fp8", [layer(), plain()], False),  # layers that the profile skips
        ("fp8_e4m3", [layer()], False),
        ("fp8_per_token_head", [layer()], True),
        ("auto", [plain()], False),
        ("bfloat16", [plain()], False),
    ],
)
def test_a_format_that_no_layer_has(
    tmp_path: Path, asked: str, layers: list[dict[str, Any]], is_refused: bool
) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors({"norm": ("F32", (1,))}))
    if not is_refused:
        check_cache(tmp_path, report(*layers), "", VLLM, asked)
        return
    with pytest.raises(ServingError) as caught:
        check_cache(tmp_path, report(*layers), "", VLLM, asked)
    assert "kv_cache_dtype" in caught.value.where
