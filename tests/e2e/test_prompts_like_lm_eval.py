"""MMLU as lm-eval's own tasks ask it: every request's text, and the groups of subjects.

In the real evaluate environment: lm-eval's own YAML files make the tasks, over local questions in
place of the Hub's, and must send exactly what the suite sends.
"""

from __future__ import annotations

from typing import Any

import pytest
from run_in_evaluate import run_in_evaluate

from eval_gates.suites.mmlu import subject_groups

COMPARE = """
import json
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

import lm_eval.tasks
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from eval_gates.suites import mmlu
GROUP_OF = [each for of in mmlu.subject_groups().values() for each in of]

FOLDERS = {"letter": "default", "cloze": "continuation"}
ROOT = Path(lm_eval.tasks.__file__).parent / "mmlu"


def carried():
    '''The development questions that lm-eval carries, by subject.'''
    found = {}
    for question in mmlu.read_development():
        found.setdefault(question["subject"], []).append(question)
    return found


def requests_of(task):
    task.build_all_requests()
    return [list(instance.args) for instance in task.instances]


def lm_evals(subject, form, shots, asked, examples):
    '''The requests of lm-eval's own task for a subject.'''

    class Local(ConfigurableTask):
        def download(self, *args, **kwargs):
            self.dataset = {"test": Dataset.from_list(asked), "dev": Dataset.from_list(examples)}

    config = load_yaml(ROOT / FOLDERS[form] / f"mmlu_{subject}.yaml")
    assert config.pop("tag")
    task = Local(config=config)
    task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(1234)
    return requests_of(task)


def ours(form, shots, asked, examples):
    laid_out = mmlu.lay_out(asked, examples, form, shots)
    return [[each.prompt, text] for each in laid_out for text in each.continuations]


pools = carried()
full = [subject for subject, questions in pools.items() if len(questions) == 5]
comparisons = []
for form in FOLDERS:
    for shots in (0, 5):
        for subject in GROUP_OF:
            # Real questions of another subject stand for the test split; spaces are a trap.
            other = full[(full.index(subject) + 1) % len(full)] if subject in full else full[0]
            asked = [
                {**q, "subject": subject, "question": f" {q['question']}  "} for q in pools[other]
            ]
            examples = [{**q, "subject": subject} for q in (pools[subject] + pools[full[2]])[:5]]
            theirs = lm_evals(subject, form, shots, asked, examples)
            mine = ours(form, shots, asked, examples)
            first = next(([a, b] for a, b in zip(theirs, mine) if a != b), None)
            comparisons.append({
                "subject": subject, "form": form, "shots": shots, "requests": len(theirs),
                "as_many": len(mine) == len(theirs),
                "first_difference": first, "characters": len(theirs[0][0]),
            })

groups = {}
for path in sorted((ROOT / "default").glob("mmlu_*.yaml")):
    config = load_yaml(path)
    groups.setdefault(config["tag"], []).append(config["dataset_name"])
print("RESULT " + json.dumps({"comparisons": comparisons, "groups": groups}))
"""

# The first test may have to build the environment.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_in_evaluate(COMPARE, tmp_path_factory.mktemp("prompts"))


def test_every_subject_is_compared_in_both_forms(result: dict[str, Any]) -> None:
    compared = {(c["subject"], c["form"], c["shots"]) for c in result["comparisons"]}
    assert len(compared) == 57 * 2 * 2
    assert all(c["requests"] >= 20 and c["as_many"] for c in result["comparisons"])


def test_examples_are_really_shown(result: dict[str, Any]) -> None:
    length = {(c["subject"], c["form"], c["shots"]): c["characters"] for c in result["comparisons"]}
    for subject, form, shots in length:
        if shots:
            assert length[subject, form, 5] > length[subject, form, 0] + 200


def test_every_request_reads_as_lm_evals_own(result: dict[str, Any]) -> None:
    assert [c for c in result["comparisons"] if c["first_difference"] is not None] == []


def test_groups_are_lm_evals_own(result: dict[str, Any]) -> None:
    names = {
        "STEM": "mmlu_stem_tasks",
        "humanities": "mmlu_humanities_tasks",
        "social sciences": "mmlu_social_sciences_tasks",
        "other": "mmlu_other_tasks",
    }
    assert {names[group]: sorted(subjects) for group, subjects in subject_groups().items()} == {
        tag: sorted(subjects) for tag, subjects in result["groups"].items()
    }
