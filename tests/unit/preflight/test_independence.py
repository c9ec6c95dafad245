"""Questions that share a passage are not evidence of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from listener import Listener

from eval_gates.suites.lm_eval_suite import known_tasks
from pipeline.plan.data_sources import (
    SourceResolver,
    check_known_clusters,
    check_laid_out_clusters,
)
from pipeline.stages.questions import QuestionsResult
from prepare.digest import FileDigests
from prepare.errors import UsageError
from recipes.policy import Policy


def laid_out(shared_text: str | None) -> QuestionsResult:
    return QuestionsResult(questions=8, questions_digest="d", guessing=0.0, shared_text=shared_text)


def policy(**suite: Any) -> Policy:
    drop = {"kind": "lm_eval", "task": "drop", "margins": {"fp8": 0.1}, **suite}
    other = {"kind": "humaneval", "margins": {"fp8": 0.1}}
    return Policy.model_validate(
        {
            "name": "p",
            "summary": "s",
            "suites": {"mine": drop, "code": other},
        }
    )


def check(policy: Policy, folder: Path, listener: Listener, eval_data: Path | None = None) -> None:
    digests = FileDigests(folder / "digests.json")
    check_known_clusters(policy, SourceResolver(eval_data, "e", digests, listener), listener)


CLUSTERED_TASKS = {
    name: task["cluster"] for name, task in known_tasks().items() if "cluster" in task
}


@pytest.mark.parametrize("task", CLUSTERED_TASKS)
def test_a_task_with_passages_is_refused_by_name(task: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        check(policy(task=task), tmp_path, Listener())
    assert caught.value.where == "policy key suites.mine.cluster_by"
    assert f"'cluster_by: {CLUSTERED_TASKS[task]}'" in caught.value.hint


@pytest.mark.parametrize("mended", [{"cluster_by": "passage"}])
def test_what_mends_it(mended: dict[str, str], tmp_path: Path) -> None:
    listener = Listener()
    check(policy(**mended), tmp_path, listener)
    check_laid_out_clusters(policy(**mended), {"mine": laid_out("passage")}, listener)
    assert listener.notes == []


def test_texts_in_common_are_seen_in_the_questions_too() -> None:
    with pytest.raises(UsageError, match="one 'story'"):
        check_laid_out_clusters(policy(task="tales"), {"mine": laid_out("story")}, Listener())
    check_laid_out_clusters(policy(task="tales"), {"mine": laid_out(None)}, Listener())


def test_a_log_whose_lines_continue_each_other_is_refused(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "one"}]
    more = [*said, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
    lines = [{"messages": said}, {"messages": more}, {"prompt": "else"}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    suite = {"kind": "fidelity", "data": str(tmp_path / "log.jsonl")}

    def own(**changes: str) -> Policy:
        suites = {"mine": {**suite, "margins": {"fp8": 0.1}, **changes}}
        return Policy.model_validate({"name": "p", "summary": "s", "suites": suites})

    with pytest.raises(UsageError) as caught:
        check(own(), tmp_path, Listener())
    assert "'cluster_by: session'" in caught.value.hint
    check(own(cluster_by="session"), tmp_path, Listener())


def test_plan_tells_what_a_log_is_read_as(tmp_path: Path) -> None:
    said = [{"role": "developer", "content": "be short"}, {"role": "user", "content": "one"}]
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    suite = {"kind": "fidelity", "data": str(tmp_path / "log.jsonl"), "margins": {"fp8": 0.1}}
    own = Policy.model_validate({"name": "p", "summary": "s", "suites": {"mine": suite}})
    listener = Listener()
    digests = FileDigests(tmp_path / "digests.json")
    SourceResolver(None, "e", digests, listener).note_remarks(own)
    (note,) = listener.notes
    assert "line 1, message 1: the role developer" in note


def test_an_advisory_suite_gets_a_note(tmp_path: Path) -> None:
    listener = Listener()
    check(policy(tier="advisory"), tmp_path, listener)
    assert "advisory" in listener.notes[0]


def test_own_requests_to_one_set_of_functions_are_evidence_each(tmp_path: Path) -> None:
    function = {"name": "find", "description": "Find.", "parameters": {"type": "dict"}}
    rows = [
        {"question": f"Find {place}.", "function": [function], "ground_truth": [{"find": {}}]}
        for place in ("Oslo", "Lima", "Rome")
    ]
    (tmp_path / "own").mkdir()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "own" / "tools_test.jsonl").write_text(text)
    tools = {"kind": "tools", "margins": {"fp8": 0.1}}
    agents = Policy.model_validate({"name": "p", "summary": "s", "suites": {"mine": tools}})
    listener = Listener()
    check(agents, tmp_path, listener, tmp_path / "own")
    assert listener.notes == []
    with pytest.raises(UsageError, match="one 'functions'"):  # BFCL's own
        check(agents, tmp_path, listener)
