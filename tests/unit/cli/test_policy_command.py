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
from pipeline.core.errors import UsageError
from pipeline.core.events import NullProgress
from pipeline.plan.first_prompt import first_prompt
from recipes import catalog

QUESTION = {"subject": "s", "question": "q", "choices": list("abcd"), "answer": 0}
DATA = {
    "mmlu_test.jsonl": (json.dumps(QUESTION) + "\n").encode() * 3000,
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
            "mmlu": {"kind": "mmlu", "margins": {"fp8": 0.02, "int4": 0.03}, **suite},
            "humaneval": {"kind": "humaneval", "margins": {"fp8": 0.2, "int4": 0.2}},
        },
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(path)


def test_list(prepare: Callable[..., str]) -> None:
    found = json.loads(prepare("show", "--json"))
    assert [policy["name"] for policy in found["policies"]] == catalog.policy_names()
    said = prepare("show")
    assert all(name in said for name in catalog.policy_names())


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


def test_a_copys_block_of_generation_has_an_effect(
    prepare: Callable[..., str], tmp_path: Path
) -> None:
    copy = yaml.safe_load(prepare("show", "reasoning"))
    copy["generation"]["max_tokens"] = 9_999
    path = tmp_path / "copy.yaml"
    path.write_text(yaml.safe_dump(copy))
    suites = json.loads(prepare("show", str(path), "--json"))["suites"].values()
    assert {suite["max_tokens"] for suite in suites} == {9_999}
    copy["suites"]["mmlu_pro"]["thinking"] = None
    path.write_text(yaml.safe_dump(copy))
    assert yaml.safe_load(prepare("show", str(path)))["suites"]["mmlu_pro"]["thinking"] is None


def test_an_unknown_name(prepare: Callable[..., str]) -> None:
    with pytest.raises(UsageError) as caught:
        prepare("show", "strickt")
    assert "did you mean 'strict'?" in caught.value.hint


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

    def test_a_field_that_repeats_is_noted(
        self, prepare: Callable[..., str], tmp_path: Path
    ) -> None:
        def noted(**suite: Any) -> str:
            asked = ["plan", "--policy", mine(tmp_path, **suite), "--eval-data", str(folder)]
            return CliRunner().invoke(app, asked).stderr

        folder = tmp_path / "passages"
        folder.mkdir()
        rows = [
            json.dumps(QUESTION | {"question": str(n), "passage_id": n // 4}) for n in range(3000)
        ]
        (folder / "mmlu_test.jsonl").write_text("\n".join(rows))
        assert "add 'cluster_by: passage_id'" in noted()
        assert "passage_id" not in noted(cluster_by="passage_id")

    def test_a_workload_without_its_file_is_refused(
        self, prepare: Callable[..., str], tmp_path: Path, data: str
    ) -> None:
        load = {"kind": "requests", "file": "gone.jsonl", "output_tokens": 4}
        content = yaml.safe_load(Path(mine(tmp_path)).read_text())
        content["speed"] = {
            "ratio": {"min_ratio": 1.0, "workloads": ["ours"]},
            "workloads": {"ours": {**load, "arrivals": {"concurrency": 4}}},
        }
        path = tmp_path / "fast.yaml"
        path.write_text(yaml.safe_dump(content))
        with pytest.raises(UsageError) as error:
            prepare("plan", "--policy", str(path), "--eval-data", data)
        where = f"policy key speed.workloads.ours, key file: {tmp_path / 'gone.jsonl'}"
        assert error.value.where == where

    def test_claims_on_speed_are_told(
        self, prepare: Callable[..., str], tmp_path: Path, data: str
    ) -> None:
        path = mine(tmp_path)
        slo = {"workload": "support", "rate": 4, "limits": {"ttft_ms_p95": 800}}
        content = yaml.safe_load(Path(path).read_text())
        content["speed"] = {"ratio": {"min_ratio": 1.2, "workloads": ["chat"]}, "slo": [slo]}
        Path(path).write_text(yaml.safe_dump(content))
        asked = ("plan", "--policy", path, "--recipe", "fp8-dynamic", "--eval-data", data)
        said = prepare(*asked)
        for word in ("speed ratio.chat", "5 blocks", "speed slo.0", "6 loads", "by true ratio"):
            assert word in said
        *_, ratio, slo = json.loads(prepare(*asked, "--json"))["gates"]
        assert (ratio["gate"], ratio["units"], ratio["starts"]) == ("ratio.chat", 5, 2)
        assert ratio["minutes"] == pytest.approx(2 * 5 * 1.2 * 30 / 60)
        assert slo["alpha"] == pytest.approx(0.05)

    def test_as_json(self, prepare: Callable[..., str], tmp_path: Path, data: str) -> None:
        said = prepare(
            *(
                "plan",
                "--policy",
                mine(tmp_path),
                "--recipe",
                "fp8-dynamic",
                "--eval-data",
                data,
                "--json",
            )
        )
        found = json.loads(said)
        assert (found["schema_version"], found["policy"], found["alpha"]) == (1, "mine", 0.05)
        assert [(gate["gate"], gate["family"]) for gate in found["gates"]] == [
            ("mmlu", "fp8"),
            ("humaneval", "fp8"),
        ]
        assert found["gates"][0]["alpha"] == pytest.approx(0.05)  # one variant
        assert found["gates"][0]["units"] == 3000

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
        assert "cannot" in prepare("plan", "--policy", path)

    def test_a_recipe_without_a_margin(self, prepare: Callable[..., str], tmp_path: Path) -> None:
        path = mine(tmp_path, margins={"int4": 0.1})
        with pytest.raises(UsageError) as caught:
            prepare("plan", "--policy", path)
        assert caught.value.where == "policy key suites.mmlu.margins"

    def test_a_wrong_file(self, prepare: Callable[..., str], tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"'suites\.mmlu\.num_fewshots'") as caught:
            prepare("plan", "--policy", mine(tmp_path, num_fewshots=5))
        assert "did you mean 'num_fewshot'?" in caught.value.hint


@pytest.mark.parametrize(
    ("suite", "folder", "words"),
    [("nosuch", ".", "no suite 'nosuch'"), ("quiz", "nowhere", "not a folder")],
)
def test_a_prompt_that_cannot_be_shown(suite: str, folder: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        first_prompt(catalog.load_policy("demo"), suite, tmp_path / folder, None, NullProgress())
