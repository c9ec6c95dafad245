"""Questions that share a passage are not evidence of their own."""

from __future__ import annotations

from typing import Any

import pytest
from listener import Listener

from eval_gates.suites.lm_eval_suite import known_tasks
from pipeline.plan.data_sources import check_independence
from pipeline.stages.questions import QuestionsResult
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


CLUSTERED_TASKS = {
    name: task["cluster"] for name, task in known_tasks().items() if "cluster" in task
}


@pytest.mark.parametrize("task", CLUSTERED_TASKS)
def test_a_task_with_passages_is_refused_by_name(task: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_independence(policy(task=task), Listener())
    assert caught.value.where == "policy key suites.mine.cluster_by"
    assert f"'cluster_by: {CLUSTERED_TASKS[task]}'" in caught.value.hint


@pytest.mark.parametrize("mended", [{"cluster_by": "passage"}])
def test_what_mends_it(mended: dict[str, str]) -> None:
    listener = Listener()
    check_independence(policy(**mended), listener)
    check_independence(policy(**mended), listener, {"mine": laid_out("passage")})
    assert listener.notes == []


def test_texts_in_common_are_seen_in_the_questions_too() -> None:
    with pytest.raises(UsageError, match="one 'story'"):
        check_independence(policy(task="tales"), Listener(), {"mine": laid_out("story")})
    check_independence(policy(task="tales"), Listener(), {"mine": laid_out(None)})


def test_an_advisory_suite_gets_a_note() -> None:
    listener = Listener()
    check_independence(policy(tier="advisory"), listener)
    assert "advisory" in listener.notes[0]
