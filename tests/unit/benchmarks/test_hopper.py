"""The H100 kit, as far as a CPU can try it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KIT = Path(__file__).parents[3] / "benchmarks/hopper"


@pytest.mark.parametrize("script", sorted(path.name for path in KIT.glob("*.sh")))
def test_script_parses(script: str) -> None:
    subprocess.run(["bash", "-n", KIT / script], check=True)


def test_plan_agrees_with_measured_h100() -> None:
    """The script exits with 1 if a planned figure is too high or more than 5 % too low."""
    done = subprocess.run([sys.executable, KIT / "planned.py"], capture_output=True, text=True)
    arms = json.loads(done.stdout.splitlines()[-1])["arms"]
    assert done.returncode == 0, done.stderr
    assert set(arms) == {"bf16", "fp8", "w4a16"}


def test_summary_gives_ratios_of_the_same_round(tmp_path: Path) -> None:
    rows = [
        {"load": "c1", "round": number, "side": side, "output_tokens_per_s": speed, "failed": 0}
        for number, speeds in enumerate([(100.0, 150.0), (200.0, 260.0)])
        for side, speed in zip(("bf16", "fp8"), speeds, strict=True)
    ]
    (tmp_path / "loads.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, KIT / "summary.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "ratio 1.500, 1.300" in done.stdout
