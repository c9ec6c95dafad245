"""One run with a suite, quantization kind and engine of another package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]

PACKAGE = Path(__file__).parents[1] / "outside_package"
RUN = PACKAGE / "run"


def test_all_of_them_in_one_run(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [find_uv_bin(), "pip", "install", "--no-deps", "--target", str(site), str(PACKAGE)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    variables = {
        "PYTHONPATH": str(site),
        "PREPARE_STORE": str(tmp_path / "store"),
    }

    def prepare(*words: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "prepare", *words, "--json"],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    files = ("recipe", "profile", "policy")
    options = [word for each in files for word in (f"--{each}", str(RUN / f"{each}.yaml"))]
    report = prepare("model", "demo:smollm2-135m", *options)
    (variant,) = (each for each in report["variants"] if each["recipe"] == "nearest-int8")
    assert variant["promoted"]
    verdicts = {gate["name"]: gate["verdict"] for gate in variant["gates"]}
    assert set(verdicts) == {"quiz", "sums"}
    assert verdicts["quiz"] == "pass"
    (version,) = prepare("registry")
    assert version["aliases"] == ["champion"]
    assert json.loads(version["tags"]["prepare.serving"])["engine"] == "outside"
    built = {each["key"]: each for each in prepare("doctor")["environments"]}
    for role, key in (("quantize", "outside-int8-cpu"), ("serve", "outside-serve-cpu")):
        assert built[key]["state"] == "ready"
        assert version["tags"][f"prepare.environment.{role}"] == built[key]["identity"]
    assert prepare("verify", "latest")["same"]
