"""`make demo` ends with what happened and what to do, wherever nothing was promoted."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[3] / "Makefile"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("code", [0, 1, 3, 4, 5, 6, 130, 137])
def test_the_last_line_of_a_demo(tmp_path: Path, code: int) -> None:
    venv = tmp_path / "venv"
    prepare = venv / "bin" / "prepare"
    prepare.parent.mkdir(parents=True)
    prepare.write_text(f"#!/bin/sh\necho a table\nexit {code}\n")
    prepare.chmod(0o755)
    for name in ("pyproject.toml", "requirements-dev.txt"):
        (tmp_path / name).touch()
    (venv / "bin" / "python").touch()
    (venv / ".installed").touch()
    asked = ["make", "--file", str(MAKEFILE), "demo", f"VENV={venv}"]
    # The tests themselves may run below `make`, whose settings change what this one prints.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(
        asked, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == (code == 0)
    ours = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert len(ours) == (code != 0)
    if ours:
        assert ours[0].startswith("make demo: ")
        assert "make demo' continues" in ours[0] or code == 4
