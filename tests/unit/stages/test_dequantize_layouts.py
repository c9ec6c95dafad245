"""Released weights in layouts of other programs become the 16-bit weights that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_variants import foreign_files, foreign_tensors
from narrow_numbers import Stored
from small_checkpoint import write_files
from sound_variants import LINEAR, WEIGHTS, safetensors_of, source_files

from pipeline.checkpoint.folder import inspect_folder
from pipeline.core.errors import PrepareError
from pipeline.core.events import NullProgress
from pipeline.core.file_digests import FileDigests
from pipeline.inspection.header_source import read_folder
from pipeline.stages.context import execute
from pipeline.stages.dequantize import (
    DEQUANTIZE,
    DequantizeParameters,
    DequantizeRuntime,
    layouts,
)
from pipeline.verification.tensor_files import TensorFiles, open_folder

# The SQNR of rounding to nearest.
FLOOR_DB = {"gptq": 17, "gptq_v2": 40, "modelopt-fp8": 30, "modelopt-nvfp4": 19}
TOKENIZER = b'{"model": {"vocab": {}}}'


def converted(folder: Path, files: dict[str, bytes]) -> Path:
    """Run the stage; no environment is there, so no worker can."""
    released = write_files(folder / "released", files | {"tokenizer.json": TOKENIZER})
    form = read_folder(released).format
    assert form is not None
    assert form.converter == "readers"
    digests = FileDigests(folder / "digests.json")
    source = inspect_folder(released, ref="it", kind="folder", revision=None, digests=digests)
    assert source.quantized == form.label
    parameters = DequantizeParameters(
        checkpoint=source.digest, converter="readers", environment="none"
    )
    runtime = DequantizeRuntime(checkpoint=source)
    spec = DEQUANTIZE.spec("dequantized", parameters, {}, runtime, folder / "store")
    execute(spec, NullProgress())
    return Path(spec.store) / "stages" / spec.stage / spec.key / "output"


def plain(folder: Path) -> TensorFiles:
    return open_folder(write_files(folder / "plain", source_files()))


@pytest.mark.parametrize("kind", list(FLOOR_DB))
def test_weights_are_those_that_were_quantized(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "FILE_BYTES", 200_000)  # several files
    made = converted(tmp_path, foreign_files(kind))
    before, after = plain(tmp_path).tensors, open_folder(made).tensors
    assert before.keys() == after.keys()
    assert len(list(made.glob("*.safetensors"))) > 1
    for name, tensor in before.items():
        wanted, found = tensor.floats(), after[name].floats()
        if name.removesuffix(".weight") in LINEAR:
            noise = float(np.square(wanted - found).sum())
            assert 10 * np.log10(np.square(wanted).sum() / noise) > FLOOR_DB[kind], name
        else:
            assert np.array_equal(wanted, found)
    config = json.loads((made / "config.json").read_text())
    assert "quantization_config" not in config
    assert (made / "tokenizer.json").read_bytes() == TOKENIZER
    assert not (made / "hf_quant_config.json").exists()


SCALES = f"{LINEAR[0]}.scales"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda array: array * np.nan, "not finite"),
        (lambda array: array[:, :-8], "has shape"),
    ],
)
def test_damaged_scales_end_in_an_error(
    tmp_path: Path, damage: Callable[[Any], Any], words: str
) -> None:
    tensors = foreign_tensors("gptq")
    tensors[SCALES] = Stored("F16", damage(tensors[SCALES].array))
    files = foreign_files("gptq") | {WEIGHTS: safetensors_of(tensors)}
    with pytest.raises(PrepareError, match=words):
        converted(tmp_path, files)


def test_a_missing_tensor_ends_in_an_error(tmp_path: Path) -> None:
    tensors = foreign_tensors("gptq")
    del tensors[SCALES]
    files = foreign_files("gptq") | {WEIGHTS: safetensors_of(tensors)}
    with pytest.raises(PrepareError, match=f"'{SCALES}' is missing"):
        converted(tmp_path, files)
