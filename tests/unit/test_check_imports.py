"""The static check of first-party imports, on a small repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_imports.py"
MODULES = {
    "pipeline/__init__.py": "",
    "pipeline/plan.py": "import os\nif os.sep:\n    LIMIT, _ = 3, 4\ndef build(): local = 1\n",
    "tests/unit/helper.py": "class Helper: ...\n",
}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("from pipeline.plan import LIMIT, build, os\nfrom helper import Helper\n", ""),
        ("from pipeline import plan\nplan.build()\n", ""),
        ("from pipeline import plan\ndef change(plan): plan.other = 1\n", ""),
        ("import json\nfrom other import thing\n", ""),
        ("from pipeline.plan import local\n", "1: no local in pipeline.plan"),
        ("from pipeline import plans\n", "1: no plans in pipeline"),
        ("def test():\n    from pipeline.plans import build\n", "2: no module pipeline.plans"),
        ("from pipeline import plan\nplan.make()\n", "2: no make in pipeline.plan"),
        ("from helper import Helpers\n", "1: no Helpers in helper"),
    ],
)
def test_a_missing_name_is_found(tmp_path: Path, text: str, fault: str) -> None:
    for name, content in {**MODULES, "tests/unit/test_it.py": text}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    ended = subprocess.run(
        [sys.executable, str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.stdout.strip() == (fault and f"tests/unit/test_it.py:{fault}")
    assert ended.returncode == bool(fault)
