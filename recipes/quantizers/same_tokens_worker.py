"""Worker: compares a tokenizer.json with the class that reads it in this environment."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prepare.events import Progress
from prepare.worker_protocol import versions_of
from recipes.checkpoints.same_tokens import check_same_tokens
from recipes.quantizers.transformers4_compat import transformers4_view

FIRST_OF_5 = "5"


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Compare; `spec` has the checkpoint's folder. StageError: as `check_same_tokens`."""
    from transformers import AutoTokenizer

    folder = Path(spec["checkpoint"])
    versions = versions_of("transformers")
    with TemporaryDirectory(prefix="prepare-tokens-") as view:
        readable = folder
        if versions["transformers"] < FIRST_OF_5:
            readable = transformers4_view(folder, Path(view))
        check_same_tokens(AutoTokenizer.from_pretrained(str(readable)), folder)
    return versions
