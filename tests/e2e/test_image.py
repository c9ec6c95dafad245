"""An image of the Containerfile, run by a user whom nobody knows, on a read-only file system.

$PREPARE_IMAGE names one that was built (`make image`); building takes too long for a test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest

from prepare.errors import ExitCode

IMAGE = os.environ.get("PREPARE_IMAGE", "")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not IMAGE, reason="PREPARE_IMAGE names no image"),
    pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed"),
]
STRANGER = ["--user", "1000680000:0", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
READ_ONLY = ["--read-only", "--read-only-tmpfs=false"]
WRITABLE = ["--tmpfs", "/tmp:mode=1777", "--shm-size", "1g"]


def contained(*words: str, options: list[str]) -> subprocess.CompletedProcess[str]:
    line = ["podman", "run", "--rm", "--network", "none", *STRANGER, *READ_ONLY, *options, IMAGE]
    return subprocess.run([*line, *words], capture_output=True, text=True, timeout=120, check=False)


def findings(options: list[str]) -> dict[str, Any]:
    found = json.loads(contained("doctor", "--json", options=options).stdout)["findings"]
    return {each["subject"]: each for each in found}


def test_nothing_is_missing() -> None:
    found = findings(WRITABLE)
    assert [each for each in found.values() if each["severity"] == "problem"] == []
    states = {name: each["message"] for name, each in found.items() if "environment" in name}
    assert list(states.values()).count("ready") == 3
    assert found["sandbox"]["severity"] == "ok"


def test_too_little_shared_memory_is_said() -> None:
    assert findings([*WRITABLE, "--shm-size", "64m"])["shared memory"]["severity"] == "problem"


def test_no_temporary_folder_is_said() -> None:
    ended = contained("doctor", options=[])
    assert ended.returncode == ExitCode.USAGE
    assert "TMPDIR" in ended.stderr
    assert "Traceback" not in ended.stderr
