"""The FP8 stream against llm-compressor: every tensor to the bit, in the real environment."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.events import NullProgress
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings

REFERENCE = Path(__file__).with_name("fp8_reference.py")
SHAPES = [[1, 1], [7, 1], [1, 9], [33, 65], [128, 128], [256, 384], [130, 131], [300, 576]]
# llm-compressor's way without a model leaves minus zero as it is, the one with a model does not.
MINUS_ZERO_ONLY = "bytes, 0x00 for 0x80"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def start(folder: Path, jobs: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Do the jobs in one process of the environment."""
    python = ensure("quantize", Accelerator.CPU, load_settings(), NullProgress()).python
    spec = folder / "jobs.json"
    spec.write_text(json.dumps(jobs))
    return subprocess.run(
        [str(python), str(REFERENCE), str(spec)], capture_output=True, text=True, timeout=800
    )


def answers(folder: Path, jobs: list[dict[str, Any]]) -> list[Any]:
    """The jobs' answers."""
    done = start(folder, jobs)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_demo_model_is_as_oneshot_makes_it(demo_model: Path, tmp_path: Path) -> None:
    """Not the tensors alone: the whole file, and config.json with all that vLLM reads of it."""
    work = tmp_path / "work"
    job = {"do": "compare", "source": str(demo_model), "work": str(work), "ways": ["oneshot"]}
    (answer,) = answers(tmp_path, [job | {"scheme": "FP8_DYNAMIC"}])
    assert answer["oneshot"] == []
    assert answer["facts"]["quantized_modules"] == 210
    assert answer["config"] == answer["oneshot_config"]
    for name in ("model.safetensors", "generation_config.json"):
        assert (work / "ours" / name).read_bytes() == (work / "oneshot" / name).read_bytes()


@pytest.mark.parametrize("scheme", ["FP8_DYNAMIC", "FP8_BLOCK"])
def test_every_kind_of_row_is_as_oneshot_makes_it(tmp_path: Path, scheme: str) -> None:
    """Zeros, denormals, huge and equal values, one column; heads untied, tied, tied and stored."""
    models: list[dict[str, Any]] = [
        {"intermediate": 37, "tied": False},
        {"intermediate": 1, "tied": True},
        {"intermediate": 40, "tied": True, "head_stored": True},
    ]
    if scheme == "FP8_BLOCK":
        models = [{"intermediate": 384, "tied": False}]
    jobs: list[dict[str, Any]] = []
    for number, model in enumerate(models):
        source, work = str(tmp_path / f"source{number}"), str(tmp_path / f"work{number}")
        jobs.append({"do": "make", "folder": source, **model})
        # model_free_ptq cannot save matrices whose last block is cut.
        both = scheme == "FP8_DYNAMIC" and not number
        ways = ["oneshot", "model_free"] if both else ["oneshot"]
        jobs.append(
            {"do": "compare", "source": source, "work": work, "scheme": scheme, "ways": ways}
        )
    compared = answers(tmp_path, jobs)[1::2]
    for model, answer in zip(models, compared, strict=True):
        assert answer["oneshot"] == []
        assert answer["facts"]["quantized_modules"] == 14
        assert (
            answer["config"]["quantization_config"]
            == (answer["oneshot_config"]["quantization_config"])
        )
        assert ("lm_head.weight" in answer["names"]) == (not model["tied"])
    if scheme == "FP8_DYNAMIC":
        assert compared[0]["model_free"]
        assert all(MINUS_ZERO_ONLY in line for line in compared[0]["model_free"])


def test_random_matrices_are_cast_as_the_library_does(tmp_path: Path) -> None:
    """Any finite bits, ordinary weights, ranges of 78 decades; both ways of casting are taken."""
    jobs = [
        {"do": "rows", "seed": seed, "scheme": scheme, "dtype": dtype, "shapes": SHAPES}
        for scheme in ("FP8_DYNAMIC", "FP8_BLOCK")
        for dtype in ("bfloat16", "float16", "float32")
        for seed in range(6 if dtype == "bfloat16" else 2)
    ]
    found = answers(tmp_path, jobs)
    assert all(answer["unequal"] == [] for answer in found)
    by_short_way = sum(answer["by_short_way"] for answer in found)
    assert 0 < by_short_way < len(jobs) * len(SHAPES)


def test_a_killed_stream_goes_on_where_it_was(demo_model: Path, tmp_path: Path) -> None:
    source, output, fresh = (tmp_path / name for name in ("source", "output", "fresh"))
    answers(tmp_path, [{"do": "split", "source": str(demo_model), "folder": str(source)}])
    killed = start(tmp_path, [{"do": "killed", "source": str(source), "output": str(output)}])
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    finished = {file: file.stat().st_ino for file in output.glob("*.safetensors")}
    total = len(list(source.glob("*.safetensors")))
    assert 0 < len(finished) < total

    job = {"do": "stream", "source": str(source)}
    again, _ = answers(tmp_path, [job | {"output": str(output)}, job | {"output": str(fresh)}])
    assert again["shards_reused"] == len(finished)
    assert all(file.stat().st_ino == inode for file, inode in finished.items())
    assert contents(output) == contents(fresh)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}
