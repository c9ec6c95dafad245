"""Suites of `kind: lm_eval` for real: laid out and asked in batches by lm-eval, without the Hub.

In the real evaluate environment, with tasks in YAML files over local data, by both workers'
own functions. A model that knows every other answer stands for the server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_in_evaluate import run_in_evaluate

SCRIPT = """
import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate

from eval_gates.suites.json_lines import read_rows
from pipeline.core.errors import PrepareError
from pipeline.core.events import NullProgress
from pipeline.workers import questions as questions_worker
from pipeline.workers.evaluate import open_suite

KNOWN = {f"What is {n} plus {n}?": str(2 * n) for n in range(0, 40, 2)}


class Sums(LM):
    '''Knows the even sums; of others it says '7'.'''

    def answer(self, prompt):
        question = prompt.strip().splitlines()[-1].removeprefix("Q: ").removesuffix(" A:")
        return KNOWN.get(question, "7")

    def loglikelihood(self, requests):
        pairs = [request.args for request in requests]
        return [(-1.0 if c.strip() == self.answer(p) else -5.0, False) for p, c in pairs]

    def generate_until(self, requests):
        self.settings = [request.args[1] for request in requests]
        self.prompts = [request.args[0] for request in requests]
        return [f"I think it is {self.answer(r.args[0])}. Or 3." for r in requests]

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError


def ask(model, suite, folder, batches, output):
    spec = {"suite": suite, "source": {"kind": "task"}, "folder": folder, "seed": 7}
    facts = questions_worker.run(spec, NullProgress(), output)
    rows = [row for _, row in read_rows(output / "questions.jsonl")]
    return {"facts": facts, **answer(model, suite, rows, batches, output)}


def answer(model, suite, rows, batches, output):
    opened = open_suite({"suite": suite, "questions": str(output / "questions.jsonl")})
    answers = []
    for batch in batches:
        results = evaluate(
            lm=model, task_dict={"suite": opened.task}, samples={"suite": list(batch)},
            log_samples=True, bootstrap_iters=0,
        )
        (samples,) = results["samples"].values()
        assert [sample["doc_id"] for sample in samples] == list(batch)
        asked = [rows[n] for n in batch]
        answers += opened.rows_of(asked, samples, NullProgress())
    return {"metric": opened.metric, "each": opened.requests_per_question, "rows": rows,
            "answers": answers}


def refusal(suite, folder=None):
    source = {"kind": "task"} if folder else {"kind": "hub"}
    spec = {"suite": suite, "source": source, "folder": folder, "seed": 7}
    output = here / "refused"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    try:
        questions_worker.run(spec, NullProgress(), output)
    except PrepareError as error:
        return str(error)
    return "not refused"


def settings(task, **changes):
    return {"kind": "lm_eval", "task": task, "metric": None, "num_fewshot": None,
            "prompt_format": "completion",
            "max_tokens": 32, **changes}


here = Path(sys.argv[2])
folder = str(here / "tasks")
found = {}
for name, suite, batches in [
    ("choices", settings("choices.yaml"), [range(5), range(5, 20)]),
    ("again", settings("choices.yaml"), [range(20)]),
    ("shots", settings("choices.yaml", num_fewshot=3), [range(5), range(5, 20)]),
    ("text", settings("text.yaml"), [range(20)]),
    ("strict", settings("text.yaml", metric="exact_match,strict"), [range(20)]),
    ("errors", settings("errors.yaml"), [range(20)]),
]:
    output = here / name
    output.mkdir()
    model = Sums()
    found[name] = ask(model, suite, folder, batches, output)
    found[name]["settings"] = getattr(model, "settings", [None])[0]
    found[name]["kept"] = sorted(
        str(path.relative_to(output)) for path in output.rglob("*")
        if path.is_file() and "dataset" not in path.parts
    )

# Asked again in another order of batches, after the user's own files are gone.
shutil.rmtree(folder + "/data")
suite = settings("choices.yaml", num_fewshot=3)
rows = found["shots"]["rows"]
found["later"] = answer(Sums(), suite, rows, [range(13, 20), range(13)], here / "shots")

found["refusals"] = {
    "perplexity": refusal(settings("wikitext")),
    "aggregate": refusal(settings("lambada_openai")),
    "group": refusal(settings("leaderboard")),
    "tag": refusal(settings("ai2_arc")),
    "unknown": refusal(settings("gsm8")),
    "code": refusal(settings("mbpp")),
    "class": refusal(settings("squadv2")),
    "metric": refusal(settings("gsm8k", metric="acc")),
    "filter": refusal(settings("gsm8k", metric="exact_match,none")),
    "offline": refusal(settings("gsm8k")),
    "data": refusal(settings("choices.yaml"), folder),
}

def without_hub(config, revision, target):
    # Stands for the Hub: questions of every subject, or sums.
    from datasets import Dataset, DatasetDict
    pro = [{"question": f"{s} {n}?", "options": ["x", "y", "z"], "answer": "B", "answer_index": 1,
            "category": s, "cot_content": "A: Let's think step by step. Yes."}
           for n in range(6) for s in SUBJECTS]
    sums = [{"question": f"What is {n} plus {n}?", "answer": f"So.\\n#### {2 * n}"}
            for n in range(12)]
    split = Dataset.from_list(sums if "gsm8k" in config["task"] else pro)
    DatasetDict({"test": split, "validation": split, "train": split}).save_to_disk(str(target))


from eval_gates.suites import lm_eval_task
from eval_gates.suites.mmlu_pro import SUBJECTS
lm_eval_task.save_dataset = without_hub


class Steps(Sums):
    # Knows law, and of the sums what its seed says.

    def generate_until(self, requests):
        self.settings = [request.args[1] for request in requests]
        return ["So the answer is (B)." if "about law" in r.args[0] else
                f"The answer is {2 * (r.args[1].get('seed', 0) % 2)}." for r in requests]


def by_name(suite, batches, output):
    output.mkdir()
    spec = {"suite": suite, "source": {"kind": "hub"}, "folder": None, "seed": 7}
    model = Steps()
    facts = questions_worker.run(spec, NullProgress(), output)
    rows = [row for _, row in read_rows(output / "questions.jsonl")]
    return {"facts": facts, **answer(model, suite, rows, batches, output),
            "settings": model.settings, "datasets": len(list((output / "dataset").iterdir()))}


found["members"] = by_name(settings("mmlu_pro"), [range(84)], here / "members")
found["repeats"] = by_name(settings("gsm8k_cot_self_consistency"), [range(12)], here / "repeats")
found["refusals"]["majority"] = refusal(
    settings("gsm8k_cot_self_consistency", metric="exact_match,maj@8"))
print("RESULT " + json.dumps(found))
"""

CHOICES = """
task: sums_choices
include: base.yaml
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{choices.index(total)}}"
"""
BASE = """
dataset_path: json
dataset_kwargs:
  data_files: {test: data/test.jsonl, train: "data/tr*n.jsonl"}
test_split: test
fewshot_split: train
doc_to_text: "Q: {{question}} A:"
"""
TEXT = """
task: sums_text
include: base.yaml
output_type: generate_until
doc_to_target: "{{total}}"
generation_kwargs: {until: ["\\n"]}
process_docs: !function sums.without_the_last
filter_list:
  - name: number
    filter: [{function: regex, regex_pattern: '(\\d+)'}, {function: take_first}]
  - name: strict
    filter: [{function: regex, regex_pattern: '^(\\d+)$'}, {function: take_first}]
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""
ERRORS = """
task: sums_errors
include: base.yaml
output_type: generate_until
doc_to_target: "{{total}}"
process_results: !function sums.wrongness
metric_list:
  - {metric: wrongness, aggregation: mean, higher_is_better: false}
"""
MODULE = """
def without_the_last(docs):
    return docs.select(range(len(docs) - 1))


def wrongness(doc, results):
    return {"wrongness": 0.25 if f" {doc['total']}." in results[0] else 0.75}
"""

# The first test may have to build the environment.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]


def sums(numbers: range) -> str:
    """Questions with three choices, the first of which is next to the right one."""
    rows = [
        {
            "question": f"What is {n} plus {n}?",
            "total": str(2 * n),
            "choices": [str(2 * n + 1), str(2 * n), "7"],
        }
        for n in numbers
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm_eval")
    tasks = folder / "tasks"
    (tasks / "data").mkdir(parents=True)
    for name, text in {
        "choices.yaml": CHOICES,
        "base.yaml": BASE,
        "text.yaml": TEXT,
        "errors.yaml": ERRORS,
        "sums.py": MODULE,
        "data/test.jsonl": sums(range(21)),
        "data/train.jsonl": sums(range(100, 140)),
    }.items():
        (tasks / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    hub_cache = tmp_path_factory.mktemp("hub_cache")
    result = run_in_evaluate(SCRIPT, folder, HF_HOME=str(hub_cache))
    result["hub_cache"] = [str(path) for path in hub_cache.rglob("*.arrow")]
    return result


def number_of(row: dict[str, Any]) -> int:
    """A row's document, which is about its number plus itself."""
    return int(row["id"].rpartition("/")[2])


def test_documents_are_laid_out_by_number(found: dict[str, Any]) -> None:
    rows = found["choices"]["rows"]
    assert [row["id"] for row in rows] == [f"sums_choices/{row['doc_index']}" for row in rows]
    assert (
        sorted(row["doc_index"] for row in rows)
        == list(range(21))
        != [row["doc_index"] for row in rows]
    )
    assert found["choices"]["facts"]["questions"] == 21
    assert found["choices"]["facts"]["metric"] == "acc"
    assert found["choices"]["facts"]["output_type"] == "multiple_choice"


def test_choices_are_scored_by_lm_evals_metric(found: dict[str, Any]) -> None:
    choices = found["choices"]
    assert (choices["metric"], choices["each"]) == ("acc", 3)
    assert {number_of(a): a["score"] for a in choices["answers"]} == {
        number_of(r): float(number_of(r) % 2 == 0) for r in choices["rows"][:20]
    }
    assert all(sorted(answer["answer"])[-1] == -1.0 for answer in choices["answers"])


def test_batches_change_nothing(found: dict[str, Any]) -> None:
    assert found["choices"]["answers"] == found["again"]["answers"]


def test_examples_hang_on_the_question_alone(found: dict[str, Any]) -> None:
    """Asked in other batches, later, and without the user's data: the same prompts."""
    shots, later = found["shots"], found["later"]
    by_id = {answer["id"]: answer for answer in shots["answers"]}
    assert {answer["id"]: answer for answer in later["answers"]} == by_id
    without = {answer["id"]: answer["prompt_sha256"] for answer in found["choices"]["answers"]}
    assert all(by_id[name]["prompt_sha256"] != digest for name, digest in without.items())


def test_text_goes_through_the_first_filter(found: dict[str, Any]) -> None:
    text = found["text"]
    assert text["metric"] == "exact_match,number"
    assert text["facts"]["questions"] == 20, "process_docs leaves one out"
    assert text["facts"]["output_type"] == "generate_until"
    for answer in text["answers"]:
        known = number_of(answer) % 2 == 0
        assert answer["score"] == float(known)
        assert answer["filtered"] == (str(2 * number_of(answer)) if known else "7")
        assert answer["answer"] == f"I think it is {answer['filtered']}. Or 3."


def test_text_goes_through_the_filter_asked_for(found: dict[str, Any]) -> None:
    assert found["strict"]["metric"] == "exact_match,strict"
    assert {answer["score"] for answer in found["strict"]["answers"]} == {0.0}


def test_the_policys_length_holds_where_the_task_says_nothing(found: dict[str, Any]) -> None:
    assert found["text"]["settings"] == {"until": ["\n"], "max_gen_toks": 32}
    assert found["errors"]["settings"] == {
        "until": ["\n\n"],
        "max_gen_toks": 32,
        "do_sample": False,
        "temperature": 0.0,
    }


def test_lower_is_better_is_turned_round(found: dict[str, Any]) -> None:
    assert found["errors"]["metric"] == "1 - wrongness"
    for answer in found["errors"]["answers"]:
        assert answer["score"] == (0.75 if number_of(answer) % 2 == 0 else 0.25)


def test_what_the_task_needs_is_kept_beside_its_questions(found: dict[str, Any]) -> None:
    code = ["task/base.yaml", "task/text.yaml", "task/sums.py"]
    assert found["text"]["kept"] == sorted(["questions.jsonl", "task.json", *code])


def test_a_group_is_one_population_of_its_members(found: dict[str, Any]) -> None:
    members = found["members"]
    assert members["facts"]["task"] == "mmlu_pro"
    assert members["facts"]["questions"] == 14 * 6
    assert members["metric"] == "exact_match,custom-extract"
    assert members["datasets"] == 1, "one dataset of all members is stored once"
    scores = {row["group"]: row["score"] for row in members["answers"]}
    assert len(scores) == 14
    assert {name for name, score in scores.items() if score} == {"mmlu_pro_law"}
    assert all(row["id"].startswith(row["group"]) for row in members["answers"])


def test_repeats_are_samples_with_seeds(found: dict[str, Any]) -> None:
    repeats = found["repeats"]
    assert repeats["each"] == 64
    assert repeats["metric"] == "exact_match,score-first"
    assert len({settings["seed"] for settings in repeats["settings"]}) == 12 * 64
    assert {settings["temperature"] for settings in repeats["settings"]} == {0.2}
    for row in repeats["answers"]:
        right = [text == f"The answer is {2 * number_of(row)}." for text in row["answer"]]
        assert len(right) == 64
        assert row["score"] == sum(right) / 64


def test_nothing_is_left_in_the_users_cache(found: dict[str, Any]) -> None:
    assert found["hub_cache"] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("perplexity", ["word_perplexity", "not a mean over documents", "none of this task's"]),
        ("aggregate", ["'perplexity'", "metrics that a gate can use: acc"]),
        ("group", ["the task's own code cannot be loaded", "math"]),
        ("tag", ["dataset cannot be read", "arc_challenge"]),
        ("unknown", ["no task 'gsm8'", "did you mean", "gsm8k"]),
        ("code", ["runs code that a model wrote", "mbpp"]),
        ("class", ["Python class", "squadv2"]),
        ("majority", ["one answer of several", "majority_vote", "self_consistency"]),
        ("metric", ["no metric 'acc'", "metrics that a gate can use: exact_match"]),
        ("filter", ["no filter 'none'", "strict-match, flexible-extract"]),
        ("offline", ["dataset cannot be read", "gsm8k", "whether the Hub can be reached"]),
        ("data", ["data file of the task does not exist", "test.jsonl", "relative to the task"]),
    ],
)
def test_what_cannot_be_a_gate_is_refused(
    found: dict[str, Any], name: str, words: list[str]
) -> None:
    for word in words:
        assert word in found["refusals"][name]
