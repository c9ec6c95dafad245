"""The suite `tools` in the evaluate environment: BFCL's own verdicts, its data, hostile answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bfcl_reference import VERDICTS
from run_in_evaluate import run_in_evaluate

SCRIPT = """
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1], "tests/e2e"))]
here = Path(sys.argv[2])

from bfcl_reference import PER_CATEGORY, fixed_arguments, fixed_text
from eval_gates.rows import Reply, ToolCall
from eval_gates.suites import bfcl
from eval_gates.suites.bfcl import (
    CATEGORIES, BfclCase, decode, is_right, read_category, right_calls)
from eval_gates.suites.json_lines import read_rows
from eval_gates.suites.tools import _find_fault, calls_in
from prepare.errors import EvaluationDataError
from prepare.events import NullProgress
from eval_gates import questions_worker
from eval_gates.evaluate_worker import OpenSuite

found = {"verdicts": {}, "right": {}, "cases": {}}
for category in CATEGORIES:
    cases = read_category(category)
    found["cases"][category] = len(cases)
    texts, calls = "", ""
    for number, case in enumerate(cases[:PER_CATEGORY]):
        right = right_calls(case.ground_truth)
        text = Reply(fixed_text(right, number))
        asked = [ToolCall(*pair) for pair in fixed_arguments(right, number)]
        answer = Reply("No call.", calls=tuple(asked))
        texts += "01"[is_right(case, calls_in(text, category, "prompt"), "prompt")]
        calls += "01"[is_right(case, calls_in(answer, category, "server"), "server")]
    found["verdicts"] |= {f"prompt/{category}": texts, f"server/{category}": calls}
    found["right"][category] = sum(
        is_right(case, right_calls(case.ground_truth), "prompt") for case in cases
    )

canary = here / "canary"
hostile = {
    "code": f"[f(x=open({str(canary)!r}, 'w').close() + 1)]",
    "import": f"[f(x=1 + __import__('pathlib').Path({str(canary)!r}).touch())]",
    "lambda": f"[f(x=lambda: open({str(canary)!r}, 'w'))]",
    "power": "[f(x=9**9**9)]",
    "long text": "[f(x='a' * 10**10)]",
    "shift": "[f(x=1 << 10**10)]",
    "deep": "[f(x=" + "(" * 1_000_000,
    "deep call": "f(x=" * 100_000,
    "deep sum": "[f(x=" + "1+" * 100_000 + "1)]",
    "half a character": "[f(x='\\ud800')]",
    "null": "[f(x='\\x00')]",
    "digits": "[f(x=" + "9" * 1_000_000 + ")]",
}
began = time.monotonic()
found["hostile"] = {
    f"{name}/{category}": str(decode(text, category))[:60]
    for name, text in hostile.items()
    for category in ("simple_python", "simple_java", "simple_javascript")
}
found["seconds"] = time.monotonic() - began
found["canary"] = canary.exists()
found["evaluated"] = str(decode("[f(x=2 * 3, y=10**6, z='a' + 'b', w=-1)]", "simple_python"))
found["left_behind"] = [path.name for path in Path(bfcl.__file__).parents[2].glob("score")]


def laid_out(name, suite, source, folder=None):
    output = here / name
    output.mkdir()
    spec = {"suite": suite, "source": source, "folder": folder, "seed": 3}
    facts = questions_worker.run(spec, NullProgress(), output)
    return facts, [row for _, row in read_rows(output / "questions.jsonl")], output


suite = {"kind": "tools", "prompt_format": "chat", "cluster_by": "functions"}
facts, rows, folder = laid_out("prompt", suite, {"kind": "packages"})
found["laid_out"] = {
    "questions": facts["questions"], "clusters": facts["clusters"],
    "groups": Counter(row["category"] for row in rows),
    "system": rows[0]["messages"][0],
}
opened = OpenSuite({**suite, "max_tokens": 8}, folder / "questions.jsonl")
batch = range(200)
asked = opened.render(batch, None)
scored = opened.score(batch, asked, [[Reply()]] * 200, NullProgress())
found["empty"] = [each.to_row() for each in scored]

own = here / "own"
own.mkdir()
add = {"name": "add", "description": "Adds.", "parameters": {
    "type": "dict", "required": ["a"],
    "properties": {"a": {"type": "integer", "description": "A number."}}}}
good = {"question": "Add 1.", "function": [add], "ground_truth": [{"add": {"a": [1]}}]}
rows_of_a_folder = {
    "good": good,
    "no call": {**good, "ground_truth": []},
    "several": {**good, "function": [add, {**add, "name": "sum"}], "question": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add 1."}]},
    "no question": {**good, "question": " "},
    "no function": {**good, "function": "add"},
    "no truth": {key: value for key, value in good.items() if key != "ground_truth"},
    "surplus": {**good, "ground_truth": [{"add": {"a": [1], "b": [2]}}]},
    "a name": {**good, "ground_truth": [{"sub": {"a": [1]}}]},
    "required": {**good, "ground_truth": [{"add": {}}]},
    "no parameters": {**good, "function": [{"name": "add"}]},
    "hyphen": {**good, "function": [{**add, "name": "add-one"}],
               "ground_truth": [{"add-one": {"a": [1]}}]},
    "hyphen, no call": {**good, "function": [{**add, "name": "add-one"}], "ground_truth": []},
}
deep = json.loads("[" * 250 + "]" * 250)
taken = {"name": "f", "description": "d", "parameters": {
    "type": "dict", "required": ["a"], "properties": {"a": {"type": "any", "description": "d"}}}}
asked = [{"role": "user", "content": "x"}]
case = BfclCase("deep", "simple", asked, [taken], [{"f": {"a": [deep]}}])
found["deep"] = {form: _find_fault(case, form) for form in ("prompt", "server")}
found["own"] = {}
for name, row in rows_of_a_folder.items():
    (own / "tools_test.jsonl").write_text(json.dumps(row))
    source = {"kind": "folder", "digest": "d"}
    try:
        _, (read,), _ = laid_out(f"own {name}", {"kind": "tools", "prompt_format": "chat"},
                                 source, str(own))
        found["own"][name] = [read["category"], [m["role"] for m in read["messages"]]]
    except EvaluationDataError as error:
        found["own"][name] = [str(error.where), error.message]

suite = {"kind": "tools", "prompt_format": "chat", "form": "server", "categories": ["multiple"]}
facts, rows, folder = laid_out("server", suite, {"kind": "packages"})
found["server"] = rows[0]
print("RESULT " + json.dumps(found))
"""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_in_evaluate(SCRIPT, tmp_path_factory.mktemp("bfcl"))


def test_fixed_answers_score_as_the_authors_score_them(found: dict[str, Any]) -> None:
    expected = json.loads(VERDICTS.read_text())
    assert found["verdicts"] == expected
    marks = "".join(expected.values())
    assert len(marks) > 1_200
    assert min(marks.count("0"), marks.count("1")) > 300


def test_every_case_of_python_is_solved_by_its_own_answer(found: dict[str, Any]) -> None:
    assert sum(found["cases"].values()) == 3_641
    missed = {name: found["cases"][name] - right for name, right in found["right"].items()}
    # Java and JavaScript write values as texts; the rest are mistakes in BFCL's own answers.
    own_mistakes = {"parallel_multiple": 2, "live_simple": 2, "live_multiple": 3}
    not_python = {"simple_java": 48, "simple_javascript": 28, "live_relevance": 16}
    assert {name: number for name, number in missed.items() if number} == {
        **own_mistakes,
        **not_python,
    }


def test_hostile_answers_run_nothing_and_end_nothing(found: dict[str, Any]) -> None:
    assert not found["canary"]
    assert found["seconds"] < 20
    of_python = {name for name, calls in found["hostile"].items() if calls == "None"}
    assert {f"{name}/simple_python" for name in ("code", "import", "power", "deep")} <= of_python
    assert found["evaluated"] == "[{'f': {'x': 6, 'y': 1000000, 'z': 'ab', 'w': -1}}]"


def test_the_package_leaves_no_folders_behind(found: dict[str, Any]) -> None:
    assert found["left_behind"] == []


def test_all_cases_are_laid_out_with_their_functions_as_clusters(found: dict[str, Any]) -> None:
    assert found["laid_out"]["questions"] == 3_641
    assert found["laid_out"]["clusters"] == 2_116
    assert found["laid_out"]["groups"] == found["cases"]
    system = found["laid_out"]["system"]
    assert system["role"] == "system"
    assert "in json format that you can invoke" in system["content"]


def test_an_empty_answer_solves_irrelevance_alone(found: dict[str, Any]) -> None:
    for row in found["empty"]:
        assert row["score"] == row["empty"] == float("irrelevance" in row["group"])


def test_a_right_call_that_is_not_read_is_a_fault_of_its_case(found: dict[str, Any]) -> None:
    assert "not read" in found["deep"]["prompt"]
    assert found["deep"]["server"] == ""


def test_the_servers_form_asks_with_tools(found: dict[str, Any]) -> None:
    (tool, *_) = found["server"]["server"]["tools"]
    assert tool["type"] == "function"
    assert "." not in tool["function"]["name"]
    assert tool["function"]["parameters"]["type"] == "object"
    assert [message["role"] for message in found["server"]["messages"]] == ["user"]


def test_a_folders_rows(found: dict[str, Any]) -> None:
    own = found["own"]
    assert own.pop("good") == ["simple", ["system", "user"]]
    assert own.pop("no call") == ["irrelevance", ["system", "user"]]
    assert own.pop("several") == ["multiple", ["system", "user"]]
    for name, (where, message) in own.items():
        assert where.endswith("tools_test.jsonl, line 1"), name
        assert "'" in message, name
