from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "kills.py"


def test_nothing_is_lost_or_left_after_kills() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "25", "10", "3"],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["locks"]["kills"], found["no_locks"]["kills"]) == (25, 10)
    assert found["full_disk_refused_and_continued"] in (True, None)
