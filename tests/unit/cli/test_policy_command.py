"""The carried policies, and what a check of a user's own says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_checkpoint import write_files
from typer.testing import CliRunner

from pipeline.cli.main import app
from prepare.errors import UsageError
from recipes import catalog

QUESTION = {"subject": "s", "question": "q", "choices": list("abcd"), "answer": 0}
DATA = {
    "mmlu_test.jsonl": "".join(
        json.dumps({**QUESTION, "question": f"q {number}"}) + "\n" for number in range(3000)
    ).encode(),
    "summarization_test.jsonl": b'{"document": "a text", "summary": "a"}\n' * 1000,
}


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setenv("PREPARE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            result.exception.__notes__ = [result.stdout]
            raise result.exception
        assert result.exit_code == 0
        return result.stdout

    return run


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(write_files(tmp_path / "data", DATA))


def mine(tmp_path: Path, **suite: Any) -> str:
    path = tmp_path / "mine.yaml"
    content = {
        "name": "mine",
        "summary": "mine",
        "suites": {
            "mmlu": {
                "kind": "mmlu",
                "num_fewshot": 0,
                "margins": {"fp8": 0.02, "int4": 0.03},
                **suite,
            },
            "humaneval": {"kind": "humaneval", "margins": {"fp8": 0.2, "int4": 0.2}},
        },
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(path)


@pytest.mark.parametrize("name", catalog.policy_names())
def test_what_is_shown_can_be_given_back(
    prepare: Callable[..., str], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(prepare("show", name))
    assert catalog.load_policy(str(path)) == catalog.load_policy(name)
    assert json.loads(prepare("show", str(path), "--json")) == json.loads(
        prepare("show", name, "--json")
    )


class TestCheck:
    def test_one_line_a_gate(self, prepare: Callable[..., str], tmp_path: Path, data: str) -> None:
        usual = {"int4": {"flips": 0.1, "loss": 0.008}}
        said = prepare("plan", "--policy", mine(tmp_path, usual=usual), "--eval-data", data)
        lines = said.splitlines()
        assert sum(line.startswith(("mmlu, ", "humaneval, ")) for line in lines) == 4
        (line,) = [each for each in lines if each.startswith("mmlu, int4")]
        assert "750 or 1,500 or 3,000 questions" in line
        assert "% of variants that lose 0.8 points (usual, 10 % flips)" in line
        assert "all suites, int4: " in said

    def test_claims_on_speed_are_told(
        self, prepare: Callable[..., str], tmp_path: Path, data: str
    ) -> None:
        path = mine(tmp_path)
        slo = {"workload": "support", "rate": 4, "limits": {"ttft_ms_p95": 800}}
        content = yaml.safe_load(Path(path).read_text())
        content["speed"] = {"ratio": {"min_ratio": 1.2, "workloads": ["chat"]}, "slo": [slo]}
        Path(path).write_text(yaml.safe_dump(content))
        asked = ("plan", "--policy", path, "--recipe", "fp8-dynamic", "--eval-data", data)
        said = prepare(*asked, "--profile", "h100")
        for word in (
            "speed ratio.chat",
            "7 blocks",
            "speed slo.0",
            "6 starts",
            "by true ratio",
            "promotion, fp8",
        ):
            assert word in said
        *_, ratio, slo = json.loads(prepare(*asked, "--profile", "h100", "--json"))["gates"]
        assert (ratio["gate"], ratio["units"]) == ("ratio.chat", 7)
        assert slo["alpha"] == pytest.approx(0.05)

    def test_where_it_cannot_decide_it_says_so_and_is_refused(
        self, prepare: Callable[..., str], tmp_path: Path
    ) -> None:
        path = mine(tmp_path, sources=["packages"], margins={"fp8": 0.005, "int4": 0.2})
        with pytest.raises(UsageError) as caught:
            prepare("plan", "--policy", path)
        assert caught.value.where == "policy key suites.mmlu.margins.fp8"
        assert "cannot decide" in caught.value.message
        assert caught.value.__notes__ == [""]  # no chances before an error

    def test_an_advisory_suite_is_let_through(
        self, prepare: Callable[..., str], tmp_path: Path
    ) -> None:
        path = mine(
            tmp_path,
            sources=["packages"],
            margins={"fp8": 0.005, "int4": 0.2},
            tier="advisory",
        )
        assert "shown, decides nothing" in prepare("plan", "--policy", path)
