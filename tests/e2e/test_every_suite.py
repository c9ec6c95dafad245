"""One run whose policy has each new suite with a few questions, and the gate on costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]

SUBJECTS = ("biology", "math", "law", "physics")
MARGINS = {"fp8": 0.5}
ADVISORY = {"tier": "advisory", "margins": MARGINS, "max_tokens": 64}
POLICY = {
    "name": "every-suite",
    "summary": "a few questions of each suite",
    "generation": {"samples": 2, "sampling": {"temperature": 0.7}},
    "suites": {
        "quiz": {
            "kind": "mmlu",
            "prompt_format": "cloze",
            "num_fewshot": 0,
            "sources": ["builtin"],
            "margins": {"fp8": 0.15},
        },
        "gsm8k": {"kind": "gsm8k", "samples": 1, **ADVISORY},
        "ifeval": {"kind": "ifeval", **ADVISORY},
        "pro": {"kind": "mmlu_pro", "num_fewshot": 1, **ADVISORY},
        "json": {"kind": "structured", "questions": 16, "sources": ["builtin"], **ADVISORY},
        "calls": {
            "kind": "tools",
            "questions": 16,
            "cluster_by": "functions",
            "sources": ["packages"],
            **ADVISORY,
        },
        "needles": {"kind": "needles", "lengths": [600], "cases": 12, **ADVISORY},
    },
    "cost": {"suites": ["gsm8k"], "max_ratio": {"fp8": 3}, "tier": "advisory"},
}


def test_every_suite_is_asked_judged_and_verified(tmp_path: Path) -> None:
    data, policy = tmp_path / "data", tmp_path / "policy.yaml"
    write_data(data)
    policy.write_text(yaml.safe_dump(POLICY))

    def prepare(*words: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "prepare", *words, "--json"],
            env={**os.environ, "PREPARE_STORE": str(tmp_path / "store")},
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    options = ["--profile", "cpu", "--recipe", "fp8-dynamic", "--policy", str(policy)]
    report = prepare(
        "model", "demo:smollm2-135m", *options, "--eval-data", str(data), "--no-promote"
    )
    (variant,) = (each for each in report["variants"] if each["recipe"] == "fp8-dynamic")
    gates = {gate["name"]: gate for gate in variant["gates"] if gate["kind"] == "quality"}
    assert set(gates) == set(POLICY["suites"])  # type: ignore[call-overload]
    assert gates["quiz"]["verdict"] == "pass"
    assert gates["gsm8k"]["n"] == 36
    assert {group["group"] for group in gates["pro"]["groups"]} == set(SUBJECTS)
    assert [gate["name"] for gate in variant["gates"] if gate["kind"] == "cost"] == ["cost gsm8k"]
    assert prepare("verify", "latest")["same"]


def write_data(folder: Path) -> None:
    """Write some rows of GSM8K, IFEval and MMLU-Pro in the authors' form."""
    folder.mkdir()
    write(
        folder / "gsm8k_test.jsonl",
        [
            {
                "question": f"Tom has {a} apples and buys {b} more. How many has he?",
                "answer": f"He has {a} + {b}.\n#### {a + b}",
            }
            for a in range(2, 8)
            for b in range(3, 9)
        ],
    )
    write(
        folder / "ifeval_test.jsonl",
        [
            {
                "key": number,
                "prompt": f"Describe {thing} without using any commas.",
                "instruction_id_list": ["punctuation:no_comma"],
                "kwargs": [{}],
            }
            for number, thing in enumerate(("a cat", "rain", "bread", "a river", "snow", "a tree"))
        ],
    )
    for name, number in (("mmlu_pro_test", 4), ("mmlu_pro_dev", 2)):
        write(
            folder / f"{name}.jsonl",
            [
                {
                    "question": f"Which word belongs to {subject}? ({name} {n})",
                    "options": ["cell", "matrix", "statute", "quark", "bread"],
                    "answer": "ABCD"[place],
                    "answer_index": place,
                    "category": subject,
                    "cot_content": f"A: Let's think step by step. The answer is ({'ABCD'[place]}).",
                }
                for n in range(number)
                for place, subject in enumerate(SUBJECTS)
            ],
        )


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
