"""A policy of one suite, which a test of a whole run can afford."""

from __future__ import annotations

from pathlib import Path

import yaml

POLICY = {
    "name": "quiz",
    "summary": "one suite",
    "suites": {
        "quiz": {
            "kind": "mmlu",
            "prompt_format": "cloze",
            "num_fewshot": 0,
            "questions": 96,
            "sources": ["builtin"],
            # The demo model loses more by rounding to 4 bits than larger ones do.
            "margins": {"fp8": 0.15, "int8": 0.15, "int4": 0.3, "fp4": 0.3},
        }
    },
}


def quiz_policy(folder: Path) -> str:
    """Write it, and return its path."""
    file = folder / "policy.yaml"
    file.write_text(yaml.safe_dump(POLICY))
    return str(file)
