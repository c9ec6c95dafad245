"""A GGUF variant against its source: files, sizes and floors (tensors: see tests/e2e)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_checkpoint import checkpoint_files, safetensors, write_files

from pipeline.checkpoint.folder import inspect_folder
from pipeline.checkpoint.weight_files import read_headers, weight_files
from pipeline.core.errors import CheckpointError, VerificationError
from pipeline.core.file_digests import FileDigests
from pipeline.verification.gguf_weights import verify_gguf
from recipes.quantizers.gguf import FLOORS_DB, GgufQuantization
from recipes.weight_format import GGUF_WEIGHTS

RECIPE = GgufQuantization(kind="gguf", type="Q4_K_M")


def layer(form: str, sqnr_db: float) -> dict[str, Any]:
    return {"name": "blk.0.x", "format": form, "rows": 8, "columns": 4, "sqnr_db": sqnr_db}


SOUND = [layer("Q4_K", 20.0), layer("Q6_K", 36.0)]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    files = checkpoint_files()
    weights = safetensors({f"layers.{n}.weight": ("BF16", (8, 4)) for n in range(4)})
    source = write_files(tmp_path / "source", files | {"model.safetensors": weights})
    variant = write_files(tmp_path / "variant", checkpoint_files())
    (variant / "model.safetensors").unlink()
    (variant / GGUF_WEIGHTS).write_bytes(b"GGUF")
    return source, variant


def verify(folders: tuple[Path, Path], layers: list[dict[str, Any]] = SOUND) -> Any:
    def compare(spec: dict[str, Any]) -> dict[str, Any]:
        assert spec["weights"] == str(folders[1] / GGUF_WEIGHTS)
        return {"layers": layers, "kept": 3}

    return verify_gguf(*folders, RECIPE, compare)


def test_a_sound_variant(folders: tuple[Path, Path]) -> None:
    found = verify(folders)
    assert [each.format for each in found.layers] == ["Q4_K", "Q6_K"]
    assert (found.kept, found.size_bytes) == (3, 4)
    assert len(found.notes) == 2


@pytest.mark.parametrize("form", ["Q4_K", "Q6_K"])
def test_each_type_has_its_floor(folders: tuple[Path, Path], form: str) -> None:
    low = [*SOUND, layer(form, FLOORS_DB[form] - 0.1)]
    with pytest.raises(VerificationError):
        verify(folders, low)


@pytest.mark.parametrize("name", ["model.safetensors", "other.gguf", "pytorch_model.bin"])
def test_a_second_weight_file_is_refused(folders: tuple[Path, Path], name: str) -> None:
    (folders[1] / name).write_bytes(b"x")
    with pytest.raises((VerificationError, CheckpointError)):
        verify(folders)


def test_another_tokenizer_is_refused(folders: tuple[Path, Path]) -> None:
    (folders[1] / "tokenizer.json").write_text("{}")
    with pytest.raises(VerificationError):
        verify(folders)


def test_it_is_smaller_than_its_source(folders: tuple[Path, Path]) -> None:
    (folders[1] / GGUF_WEIGHTS).write_bytes(bytes(10_000))
    with pytest.raises(VerificationError):
        verify(folders)


def test_a_variants_file_is_its_weights_but_no_source(folders: tuple[Path, Path]) -> None:
    variant = folders[1]
    assert weight_files(variant) == [variant / GGUF_WEIGHTS]
    with pytest.raises(CheckpointError):
        read_headers(variant)
    with pytest.raises(CheckpointError) as caught:
        inspect_folder(
            variant, ref="x", kind="folder", revision=None, digests=FileDigests(variant / "d")
        )
    assert "GGUF" in caught.value.message
