"""Variants in the layouts of other programs: served on a CPU, gated, promoted; broken ones refused.

`foreign_layouts.py` writes GPTQ's, ModelOpt's and GGUF's; AutoAWQ writes its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prepare_command import prepare
from quiz_policy import quiz_policy
from weight_comparer import check_variant, comparer

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.plan.adopted_variants import read_variant
from pipeline.plan.data_sources import BUILTIN_CALIBRATION
from pipeline.stages.context import advance
from pipeline.stages.quantize import QUANTIZE, QuantizeParameters, QuantizeRuntime
from prepare.digest import FileDigests
from prepare.errors import PrepareError
from prepare.events import NullProgress
from prepare.store import Store
from recipes.accelerator import Accelerator
from recipes.catalog import load_recipe
from recipes.checkpoints.checkpoint import inspect_folder
from recipes.checkpoints.known_checkpoints import Checkpoints

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3000), pytest.mark.of_everything]

SCRIPT = Path(__file__).with_name("foreign_layouts.py")
SERVED = ("gptq", "gptq-8", "fp8", "modelopt-fp8", "modelopt-nvfp4", "gguf-q8")
FOUR_BITS = ("gptq", "modelopt-nvfp4")
BLOCK = "model.layers.7"
LAYER = f"{BLOCK}.mlp.down_proj"
# Layouts that no library here dequantizes; their numbers are for the gates.
BY_HEADER = ("gptq", "gptq-8")
HEADER = 8  # bytes of its length
# The tensor to multiply by two, by adding to each number's exponent: numpy's type, what to add.
SCALES = {
    "fp8": ("weight_scale", "<u4", 1 << 23),
    "modelopt-fp8": ("weight_scale", "<u4", 1 << 23),
    "modelopt-nvfp4": ("weight_scale_2", "<u4", 1 << 23),
    "gguf-q8": ("weight", "<u2", 1 << 7),
    "autoawq": ("scales", "<u2", 1 << 10),
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return quiz_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def foreign(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    python = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress()).python
    command = [python, SCRIPT, demo_model, folder]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    (folder / "autoawq").symlink_to(by_autoawq(demo_model, folder / "store"))
    return folder


def by_autoawq(demo_model: Path, store: Path) -> Path:
    """AutoAWQ's own files; on a CPU it needs the worker's guard (test_autoawq.py)."""
    python = ensure("quantize-autoawq", Accelerator.CPU, load_settings(), NullProgress()).python
    digests = FileDigests(store.with_name("digests.json"))
    source = inspect_folder(demo_model, digests)
    quantization = load_recipe("autoawq-w4a16").quantization
    assert quantization.calibration is not None
    update = {"dataset": "builtin", "samples": 4, "max_tokens": 128}
    small = quantization.calibration.model_copy(update=update)
    quantization = quantization.model_copy(update={"calibration": small})
    parameters = QuantizeParameters(
        checkpoint=source.digest, quantization=quantization, environment="e"
    )
    runtime = QuantizeRuntime(
        checkpoint=source.place, python=str(python), calibration_file=str(BUILTIN_CALIBRATION)
    )
    spec = QUANTIZE.spec("awq", parameters, {}, runtime, store)
    advance(spec, Store(Path(spec.store)), NullProgress())
    return Path(spec.store) / "stages" / spec.stage / spec.key / "output"


def test_sound_ones_are_served_and_promoted(
    demo_model: Path, foreign: Path, tmp_path: Path, policy: str
) -> None:
    """Six layouts in one run, and one promotion; a server for each."""
    store = tmp_path / "store"
    variants = [word for kind in SERVED for word in ("--variant", f"{kind}={foreign / kind}")]
    options = ["--profile", "cpu", "--policy", policy, "--name", "demo", "--json"]
    done = prepare(store, "model", str(demo_model), *options, *variants, timeout=2400)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    verdicts = {each["recipe"]: each["verdict"] for each in report["variants"]}
    assert verdicts.keys() == {*SERVED}
    # Rounding to 4 bits costs the demo model more than a small policy can decide about.
    assert {verdicts[kind] for kind in SERVED if kind not in FOUR_BITS} == {"pass"}
    assert {verdicts[kind] for kind in FOUR_BITS} <= {"pass", "undecided"}
    assert json.loads(prepare(store, "verify", "latest", "--json").stdout)["same"]
    shown = prepare(store, "registry", "demo", "--json").stdout
    assert "prepare.made_by" in shown

    alone = ["--variant", f"autoawq={foreign / 'autoawq'}"]
    done = prepare(store, "model", str(demo_model), *options, *alone, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    (made,) = json.loads(done.stdout)["variants"]
    assert made["promoted"]


def refusal(source: Path, variant: Path) -> str:
    """Return what refuses a variant before anything is served."""
    with pytest.raises(PrepareError) as caught:
        check(source, variant)
    shutil.rmtree(variant)
    return caught.value.message


def check(source: Path, variant: Path) -> None:
    recipe = read_variant(f"it={variant}", Checkpoints()).recipe.quantization
    with comparer(variant.parent) as compare:
        check_variant(source, variant, recipe, compare)


def copy(folder: Path, place: Path) -> Path:
    """Copy the files; weights are linked."""

    def take(source: str, target: str) -> None:
        (os.link if source.endswith(".safetensors") else shutil.copy)(source, target)

    return Path(shutil.copytree(folder.resolve(), place, copy_function=take))


def rewrite(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Change a tensor's bytes."""
    (file,) = folder.glob("*.safetensors")
    raw = bytearray(file.read_bytes())
    length = int.from_bytes(raw[:HEADER], "little")
    begin, end = json.loads(raw[HEADER : HEADER + length])[name]["data_offsets"]
    start = HEADER + length
    raw[start + begin : start + end] = change(bytes(raw[start + begin : start + end]))
    file.unlink()  # a link
    file.write_bytes(raw)


@pytest.mark.parametrize("kind", [*SCALES, *BY_HEADER])
def test_broken_ones_are_refused(
    demo_model: Path, foreign: Path, tmp_path: Path, kind: str
) -> None:
    if kind not in BY_HEADER:
        part, number, step = SCALES[kind]
        broken = copy(foreign / kind, tmp_path / "scales")
        rewrite(
            broken,
            f"{LAYER}.{part}",
            lambda raw: (np.frombuffer(raw, number) + np.array(step, number)).tobytes(),
        )
        assert BLOCK in refusal(demo_model, broken)

        # Another revision: the layer's numbers in another order, as if trained again.
        broken = copy(foreign / kind, tmp_path / "revision")
        own = "qweight" if kind == "autoawq" else "weight"
        rewrite(broken, f"{LAYER}.{own}", lambda raw: raw[len(raw) // 2 :] + raw[: len(raw) // 2])
        assert BLOCK in refusal(demo_model, broken)

    broken = copy(foreign / kind, tmp_path / "tokenizer")
    tokenizer = json.loads((broken / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[1000:1002]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (broken / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "tokenizer is not the source's" in refusal(demo_model, broken)

    broken = copy(foreign / kind, tmp_path / "shard")
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "weight files are missing" in refusal(demo_model, broken)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "gptq": ({"bits": 8}, "shape"),
    "gptq-8": ({"group_size": 128}, "shape"),
    "fp8": ({"weight_block_size": [128, 128]}, "weight_scale_inv' is missing"),
    "modelopt-fp8": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "stored as"),
    "modelopt-nvfp4": ({"quant_method": "fp8"}, "stored as U8"),
    "gguf-q8": ({"quant_method": "awq", "bits": 4, "group_size": 64}, "nothing was quantized"),
    "autoawq": ({"group_size": 128}, "shape"),
}


@pytest.mark.parametrize("kind", list(WRONG))
def test_a_wrong_description_is_refused(
    demo_model: Path, foreign: Path, tmp_path: Path, kind: str
) -> None:
    changes, words = WRONG[kind]
    broken = copy(foreign / kind, tmp_path / "config")
    config = json.loads((broken / "config.json").read_text())
    config["quantization_config"] = config.get("quantization_config", {}) | changes
    (broken / "config.json").write_text(json.dumps(config))
    assert words in refusal(demo_model, broken)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "no loader",
        ),
        ({"quant_method": "gptq", "bits": 4, "sym": False, "group_size": 64}, "symmetric"),
    ],
)
def test_what_no_engine_here_loads_is_refused_before_it_is_copied(
    demo_model: Path, foreign: Path, tmp_path: Path, config: dict[str, Any], words: str, policy: str
) -> None:
    other = copy(foreign / "gptq", tmp_path / "other")
    found = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(found | {"quantization_config": config}))
    store = tmp_path / "store"
    for command in ("plan", "model"):
        options = ["--profile", "cpu", "--policy", policy, "--variant", f"it={other}"]
        done = prepare(store, command, str(demo_model), *options)
        assert done.returncode == 2
        assert words in done.stdout + done.stderr
        assert "gate-two-endpoints" in done.stdout + done.stderr
    assert not (store / "stages" / "adopt").exists()
