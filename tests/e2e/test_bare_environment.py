"""An environment with the built wheel and what the wheel declares, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from installed_wheel import ROOT, build_wheel, run_installed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

FUNCTION = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "dict", "required": ["a"], "properties": {"a": {"type": "integer"}}},
}
ROWS: dict[str, dict[str, Any]] = {
    "mmlu": {"subject": "s", "question": "Which?", "choices": list("abcd"), "answer": 0},
    "mmlu_pro": {"question": "Which?", "options": ["8", "9"], "answer": "B", "category": "math"},
    "gsm8k": {"question": "How many?", "answer": "Two.\n#### 2"},
    "ifeval": {
        "prompt": "Write.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    },
    "mbpp": {
        "task_id": 1,
        "prompt": "Double a number.",
        "code": "def twice(x):\n    return 2 * x",
        "test_imports": [],
        "test_list": ["assert twice(2) == 4"],
        "test": "assert twice(3) == 6",
    },
    "rouge": {"document": "A text.", "summary": "A text."},
    "tools": {"question": "Add 1.", "function": [FUNCTION], "ground_truth": [{"add": {"a": [1]}}]},
    "structured": {"prompt": "Ada is 34.", "schema": {"type": "object"}},
    "fidelity": {"prompt": "Say something."},
}
STEMS = {"rouge": "summarization", "fidelity": "conversations"}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the environment's programs."""
    folder = tmp_path_factory.mktemp("bare")
    environment = folder / "environment"
    wheel = build_wheel(folder / "wheels")
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=120)
    install = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    pins = ["--constraint", str(ROOT / "requirements-dev.txt")]
    subprocess.run([*install, *pins, str(wheel)], check=True, timeout=600)
    return environment / "bin"


def valid_rows(kind: str, number: int) -> list[object]:
    """Rows that differ in their text; tools also in their functions."""
    row = ROWS[kind]
    text = next(name for name in ("question", "prompt", "document") if name in row)
    rows = [{**row, text: f"{row[text]} {place}"} for place in range(number)]
    for place, each in enumerate(rows):
        if kind == "mbpp":
            each["task_id"] = place
        if kind == "tools":
            name = f"add_{place}"
            called = {"functions": name, "ground_truth": [{name: {"a": [1]}}]}
            each |= {"function": [{**FUNCTION, "name": name}], **called}
    return list[object](rows)


def plan_with(bare: Path, home: Path, kind: str, rows: list[object]) -> tuple[int, str, Path]:
    """Plan a policy with one suite of that kind, over a file of these rows."""
    data = home / "data"
    data.mkdir()
    file = data / f"{STEMS.get(kind, kind)}_test.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite: dict[str, object] = {"kind": kind, "margins": {"fp8": 0.4}, "sources": ["eval-data"]}
    if kind in ("mmlu", "mmlu_pro"):
        suite["num_fewshot"] = 0
    if kind == "tools":
        suite["cluster_by"] = "functions"
    policy = home / "policy.yaml"
    policy.write_text(yaml.safe_dump({"name": "p", "summary": "s", "suites": {"mine": suite}}))
    asked = ("plan", "--policy", policy, "--recipe", "fp8-dynamic", "--eval-data", data)
    done = run_installed(bare / "prepare", *asked, home=home)
    return done.returncode, done.stdout + done.stderr, file


def test_its_command_starts_by_both_names(bare: Path, tmp_path: Path) -> None:
    for command in ((bare / "prepare",), (bare / "python", "-m", "prepare")):
        done = run_installed(*command, "--help", home=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "doctor" in done.stdout


def test_doctor_reports(bare: Path, tmp_path: Path) -> None:
    done = run_installed(bare / "prepare", "doctor", "--json", home=tmp_path, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize("kind", ROWS)
def test_plan_takes_questions_of_the_right_form(bare: Path, tmp_path: Path, kind: str) -> None:
    code, said, _ = plan_with(bare, tmp_path, kind, valid_rows(kind, 200))
    assert code == 0, said


@pytest.mark.parametrize("kind", ROWS)
def test_plan_refuses_malformed_questions(bare: Path, tmp_path: Path, kind: str) -> None:
    rows = [*valid_rows(kind, 199), {"no": "question"}]
    code, said, file = plan_with(bare, tmp_path, kind, rows)
    assert code == 2, said
    assert f"{file}, line 200" in said.replace("\n", " ")
