from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_run import NAME, FakeRun, profile
from foreign_variants import foreign_files, foreign_tensors
from small_checkpoint import write_files
from sound_variants import source_files

from artifacts.deploy.registered import open_version
from artifacts.evidence.verify import check_bundle
from pipeline.plan.adopted_variants import AdoptedVariant, read_served, read_variant
from recipes.checkpoints.known_checkpoints import Checkpoints
from recipes.quantizers.adopted import AdoptedQuantization

CARD = b"---\nlicense: gemma\n---\n# FP8 by a vendor\n"


def run_of(tmp_path: Path, *variants: AdoptedVariant) -> FakeRun:
    write_files(tmp_path / "source", source_files())
    made = FakeRun(tmp_path / "store", adopted=variants, recipes=())
    made.run()
    return made


def vendor(tmp_path: Path, changes: dict[str, bytes] | None = None) -> AdoptedVariant:
    files = foreign_files("modelopt-fp8") | {"README.md": CARD} | (changes or {})
    return read_variant(str(write_files(tmp_path / "Vendor-FP8", files)), Checkpoints())


def online() -> AdoptedVariant:
    serving: dict[str, Any] = {
        "engine_arguments": {"dtype": "bfloat16", "kv-cache-dtype": "fp8"},
        "environment": {},
    }
    words = "online=--quantization fp8 --kv-cache-dtype auto"
    return read_served(words, "source", profile(serving, "cpu"))


def test_a_sound_variant_is_promoted_with_its_maker(tmp_path: Path) -> None:
    made = run_of(tmp_path, vendor(tmp_path))
    (report,) = made.report.variants
    assert (report.recipe, report.verdict) == ("vendor-fp8", "pass")
    made.promote()
    (version,) = made.registry.versions(NAME)
    assert version.tags["prepare.made_by"] == "Vendor-FP8 (modelopt 0.33.0)"
    folder = made.bundle("vendor-fp8")
    check = check_bundle(folder)
    assert (check.is_sound, check.made_by) == (True, "Vendor-FP8 (modelopt 0.33.0)")
    card = (folder / "README.md").read_text()
    assert "quantized elsewhere (Vendor-FP8 (modelopt 0.33.0))" in card
    assert "| variant's license | gemma |" in card
    assert (folder / "hf_quant_config.json").is_file()
    past = open_version(version, folder, trust_remote_code=False)
    assert past.recipe.family == "fp8"
    assert isinstance(past.recipe.quantization, AdoptedQuantization)


def test_the_promoted_files_are_copies(tmp_path: Path) -> None:
    """Another program may write into the variant's folder later."""
    made = run_of(tmp_path, vendor(tmp_path))
    weights = tmp_path / "Vendor-FP8" / "model.safetensors"
    content = weights.read_bytes()
    with weights.open("r+b") as file:
        file.write(b"other")
    copied = made.folder("adopt", "vendor-fp8") / "output" / "model.safetensors"
    assert copied.read_bytes() == content
    assert not copied.is_symlink()


def test_a_served_variant_has_the_sources_weights(tmp_path: Path) -> None:
    made = run_of(tmp_path, online())
    (report,) = made.report.variants
    assert (report.recipe, report.verdict) == ("online", "pass")
    made.promote()
    (version,) = made.registry.versions(NAME)
    serving = json.loads(version.tags["prepare.serving"])["engine_arguments"]
    assert (serving["quantization"], serving["kv-cache-dtype"]) == ("fp8", "auto")
    folder = made.bundle("online")
    assert check_bundle(folder).is_sound
    assert (folder / "model.safetensors").read_bytes() == source_files()["model.safetensors"]
    assert "--quantization fp8" in (folder / "README.md").read_text()
    past = open_version(version, folder, trust_remote_code=False)
    assert past.profile.variant_arguments == {"quantization": "fp8"}


@pytest.mark.parametrize("changed", ["model.safetensors", "tokenizer_config.json"])
def test_other_files_are_another_variant(tmp_path: Path, changed: str) -> None:
    before = run_of(tmp_path, vendor(tmp_path)).folder("adopt", "vendor-fp8").name
    tensors = foreign_tensors("modelopt-fp8")
    files = {"tokenizer_config.json": b'{"a": 1}'}
    if changed == "model.safetensors":
        del tensors["model.layers.0.self_attn.sinks"]
        files = {changed: foreign_files("modelopt-fp8", tensors)[changed]}
    made = FakeRun(tmp_path / "store", adopted=(vendor(tmp_path, files),), recipes=())
    (variant,) = made.plan().variants
    assert variant.stages["weights"].key != before
