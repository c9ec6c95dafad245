"""The dry run for real: the quantizer on two layers of the demo model, sound and damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.checkpoint.safetensors_header import read_header
from pipeline.core.events import NullProgress
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import Settings, load_settings
from pipeline.plan.build_plan import find_data, make_plan
from pipeline.plan.checkpoint_resolver import locate
from pipeline.plan.resolved_options import ModelRequest, choose
from pipeline.run.session import RunSession

# The first test may have to build the environments.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

RECIPE = "awq-w4a16"
NAN = b"\xc0\x7f"  # in bf16, little-endian


def request(model: Path) -> ModelRequest:
    return ModelRequest(
        checkpoint=str(model),
        recipes=(RECIPE,),
        profile="cpu",
        policy="demo",
        name=None,
        registry=None,
        eval_data=None,
        trust_remote_code=False,
        dry_run=True,
    )


def test_of_the_demo_model(demo_model: Path, tmp_path: Path) -> None:
    home = load_settings().home
    settings = Settings(home=home, store=tmp_path / "store")
    choices = choose(request(demo_model), settings)
    sources = find_data(choices, settings, NullProgress())
    checkpoint = locate(choices, settings, lambda _: demo_model, NullProgress())
    plan = make_plan(choices, checkpoint, settings, sources)
    stages = RunSession(
        "model", choices.to_dict(), Accelerator.CPU, settings, NullProgress()
    ).stages
    ensure("quantize", Accelerator.CPU, settings, NullProgress())
    spec = plan.variants[0].stages["dry_run"]
    record = stages.run(spec)
    assert record.seconds < 180  # 9 s on two quiet cores
    assert record.result["layers"] == [0, 1]
    # Two layers of the demo model's 30, and the embedding that most of it is.
    assert record.result["source_bytes"] == pytest.approx(70.8e6, rel=0.01)
    assert record.result["verified"]["quantized_tensors"] == 2 * 7
    folder = stages.store.stage_folder("dry_run", spec.key)
    assert not list(folder.rglob("*.safetensors"))
    assert (folder / "worker.log").stat().st_size > 0


@pytest.fixture
def damaged(demo_model: Path, tmp_path: Path) -> Path:
    """The demo model with one value of its second layer that is no number."""
    folder = tmp_path / "damaged"
    shutil.copytree(demo_model, folder)
    weights = folder / "model.safetensors"
    header = read_header(weights)
    tensor = header.tensors["model.layers.1.mlp.down_proj.weight"]
    assert tensor.dtype == "BF16"
    with weights.open("r+b") as file:
        file.seek(header.data_start + tensor.begin)
        file.write(NAN)
    return folder


def test_what_would_fail_after_an_hour_fails_before_it(damaged: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pipeline.cli.main", "model", str(damaged)),
            *("--recipe", RECIPE, "--profile", "cpu", "--policy", "demo", "--dry-run", "--json"),
        ],
        env={**os.environ, "PREPARE_STORE": str(store)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 1, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout)
    (variant,) = report["variants"]
    assert variant["verdict"] == "error"
    assert "the dry run on 2 layers failed" in variant["reason"], variant["reason"]
    assert "layers.1" in variant["reason"] or "nan" in variant["reason"].lower()
    ended = {stage["name"]: stage["status"] for stage in report["stages"]}
    assert ended["dry_run"] == "failed"
    # Neither the long stage nor the baseline's server was begun.
    assert not {"quantize", "serve", "coherence"} & set(ended)
    assert not list((store / "stages" / "dry_run").rglob("*.safetensors"))
