from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.errors import EnvironmentBuildError
from pipeline.environments.interpreter import describe, missing_modules


@pytest.mark.parametrize("says", ["", "hello", "[" * 9000, "NaN", "1", "true"])
def test_a_program_that_is_no_python_is_an_expected_error(tmp_path: Path, says: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{says}'\n")
    python.chmod(0o755)
    with pytest.raises(EnvironmentBuildError) as caught:
        missing_modules(python, ["vllm"])
    assert str(python) in caught.value.where
    with pytest.raises(EnvironmentBuildError):
        describe(python)
