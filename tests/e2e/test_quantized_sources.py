"""Checkpoints that were released quantized: dequantized, quantized again, served as the baseline.

Other programs made them: a script (DeepSeek's FP8 in blocks) and llm-compressor by hand.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from narrow_numbers import Stored, from_bf16
from prepare_command import prepare
from quiz_policy import quiz_policy
from tiny_llama import HEAD, LAYERS, SCHEMES
from weight_comparer import check_variant, comparer

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.data_sources import BUILTIN_CALIBRATION
from pipeline.stages.context import advance
from pipeline.stages.dequantize import DEQUANTIZE, DequantizeParameters, DequantizeRuntime
from pipeline.stages.quantize import QUANTIZE, QuantizeParameters, QuantizeRuntime
from prepare.digest import FileDigests
from prepare.events import NullProgress
from prepare.stage import StageSpec
from prepare.store import Store
from recipes.accelerator import Accelerator
from recipes.catalog import load_recipe
from recipes.checkpoints.checkpoint import Checkpoint, inspect_folder, read_folder
from recipes.weights.accounting import StoredTensor, open_folder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]

SCRIPT = Path(__file__).parent / "tiny_llama.py"
# The lowest SQNR of rounding random weights to nearest.
FLOOR_DB = {"FP8_DYNAMIC": 30, "FP8": 30, "W4A16": 18, "W8A16": 40, "NVFP4A16": 19, "MXFP4": 16}


@pytest.fixture(scope="module")
def python() -> Path:
    return ensure("quantize", Accelerator.CPU, load_settings(), NullProgress()).python


@pytest.fixture(scope="module")
def released(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    subprocess.run([python, SCRIPT, folder], check=True, capture_output=True, timeout=300)
    return folder


def checkpoint(folder: Path) -> Checkpoint:
    digests = FileDigests(folder.with_name("digests.json"))
    return inspect_folder(folder, digests)


def output_of(spec: StageSpec) -> Path:
    advance(spec, Store(Path(spec.store)), NullProgress())
    return Path(spec.store) / "stages" / spec.stage / spec.key / "output"


def values(tensor: StoredTensor) -> Any:
    """A tensor's numbers, which are bf16."""
    raw = np.fromfile(tensor.path, "<u2", tensor.size // 2, offset=tensor.begin)
    return from_bf16(Stored(tensor.dtype, raw.reshape(tensor.shape)))


def dequantize(folder: Path, python: Path, store: Path) -> Path:
    form = read_folder(folder).format
    assert form is not None
    assert form.converter is not None
    source = checkpoint(folder)
    parameters = DequantizeParameters(
        checkpoint=source.digest, converter=form.converter, environment="e"
    )
    runtime = DequantizeRuntime(checkpoint=source.place, python=str(python))
    return output_of(DEQUANTIZE.spec("dequantized", parameters, {}, runtime, store))


@pytest.mark.parametrize("form", ["fp8-block", *SCHEMES])
def test_sixteen_bits_are_those_that_were_quantized(
    released: Path, python: Path, tmp_path: Path, form: str
) -> None:
    found = open_folder(dequantize(released / form, python, tmp_path / "store"))
    plain = open_folder(released / "plain")
    assert found.tensors.keys() == plain.tensors.keys()
    for name, tensor in plain.tensors.items():
        before, after = values(tensor), values(found.tensors[name])
        if name.endswith("_proj.weight"):
            noise = float(np.square(before - after).sum())
            assert 10 * np.log10(np.square(before).sum() / noise) > FLOOR_DB.get(form, 30)
        else:
            assert np.array_equal(before, after)


def test_heads_for_multi_token_prediction_are_carried(
    released: Path, python: Path, tmp_path: Path
) -> None:
    """DeepSeek's heads are layers after the last, which transformers does not load."""
    folder = released / "with-mtp"
    source = checkpoint(folder)
    quantization = load_recipe("gptq-w4a16").quantization
    assert quantization.calibration is not None
    update = {"dataset": "builtin", "samples": 2, "max_tokens": 32}
    small = quantization.calibration.model_copy(update=update)
    ignore = [*quantization.ignore, rf"re:(.*\.)?(layers\.{LAYERS})(\..*)?$"]
    recipe = quantization.model_copy(update={"calibration": small, "ignore": ignore})
    parameters = QuantizeParameters(checkpoint=source.digest, quantization=recipe, environment="e")
    runtime = QuantizeRuntime(
        checkpoint=source.place, python=str(python), calibration_file=str(BUILTIN_CALIBRATION)
    )
    made = output_of(QUANTIZE.spec("gptq", parameters, {}, runtime, tmp_path / "store"))
    before, after = open_folder(folder), open_folder(made)
    for name in HEAD:
        whole = f"model.layers.{LAYERS}.{name}"
        assert np.array_equal(values(before.tensors[whole]), values(after.tensors[whole]))
    config = json.loads((made / "config.json").read_text())["quantization_config"]
    assert ignore[-1] in config["ignore"]
    with comparer(tmp_path) as compare:
        assert check_variant(folder, made, recipe, compare).layers


def test_released_weights_are_served_as_the_baseline(
    demo_model: Path, python: Path, tmp_path: Path
) -> None:
    """The whole run: FP8 weights as the baseline, dequantized, FP8 of that, verdict and card."""
    source = checkpoint(demo_model)
    quantization = load_recipe("fp8-dynamic").quantization
    parameters = QuantizeParameters(
        checkpoint=source.digest, quantization=quantization, environment="e"
    )
    runtime = QuantizeRuntime(checkpoint=source.place, python=str(python))
    released = output_of(QUANTIZE.spec("fp8", parameters, {}, runtime, tmp_path / "made"))
    store = tmp_path / "store"
    options = ["--policy", quiz_policy(tmp_path), "--name", "fp8", "--json"]
    command = ["model", str(released), "--recipe", "fp8-dynamic", *options]
    done = prepare(store, *command, timeout=1500)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["checkpoint"]["quantized"] == "FP8"
    (card,) = (store / "versions").glob("*/README.md")
    assert "against the released FP8 weights" in card.read_text()
    stages = {path.name for path in (store / "stages").iterdir()}
    assert {"dequantize", "quantize", "check_weights"} <= stages
