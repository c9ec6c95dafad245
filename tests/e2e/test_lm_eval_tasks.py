"""Suites of `kind: lm_eval` give lm-eval's own scores: with filters, groups and repeats.

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

from datasets import Dataset, DatasetDict
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.tasks._yaml_loader import load_yaml

from eval_gates.rows import Reply
from eval_gates.suites import lm_eval_task
from eval_gates.suites.json_lines import read_rows
from eval_gates.suites.presets import presets
from prepare.errors import PrepareError
from prepare.events import NullProgress
from eval_gates import questions_worker
from eval_gates.evaluate_worker import OpenSuite

KNOWN = {f"What is {n} plus {n}?": str(2 * n) for n in range(0, 40, 2)}
here = Path(sys.argv[2])
folder = here / "tasks"


def known(prompt):
    '''Knows the even sums; of others it says '7'.'''
    question = prompt.strip().splitlines()[-1].removeprefix("Q: ").removesuffix(" A:")
    return KNOWN.get(question, "7")


def likelihood(prompt, choice):
    return (-1.0 if choice.strip() == known(prompt) else -5.0, False)


def text(question, sample):
    return f"I think it is {known(question.prompt)}. Or 3."


def steps(question, sample):
    '''Knows law, and of the sums what the sample's number says.'''
    law = "about law" in question.prompt
    return "So the answer is (B)." if law else f"The answer is {2 * (sample % 2)}."


class Sums(LM):
    def loglikelihood(self, requests):
        return [likelihood(*request.args) for request in requests]

    def generate_until(self, requests):
        return [f"I think it is {known(request.args[0])}. Or 3." for request in requests]

    loglikelihood_rolling = None


def lm_evals(file):
    '''Scores of lm-eval's own run of the file, by filter and number.'''
    rows = {name: [json.loads(line) for line in (folder / f"data/{name}.jsonl").open()]
            for name in ("test", "train")}

    class Local(ConfigurableTask):
        def download(self, *args, **kwargs):
            self.dataset = {name: Dataset.from_list(each) for name, each in rows.items()}

    task = Local(config=load_yaml(folder / file))
    found = evaluate(lm=Sums(), task_dict={"t": task}, log_samples=True, bootstrap_iters=0)
    scores = {}
    for sample in found["samples"]["t"]:
        metric = sample["metrics"][0]
        scores.setdefault(f"{metric},{sample['filter']}", {})[sample["doc_id"]] = sample[metric]
    return scores


def answer(suite, batches, output, say=text):
    suite_opened = OpenSuite(suite, output / "questions.jsonl")
    answers, settings = [], []
    for batch in batches:
        asked = suite_opened.render(batch, None)
        settings += [each.generate for each in asked]
        replies = []
        for each in asked:
            contexts = each.contexts or [each.prompt] * len(each.continuations)
            pairs = zip(contexts, each.continuations, strict=True)
            values = tuple(likelihood(*pair) for pair in pairs)
            samples = range(suite_opened.settings["samples"])
            replies.append([Reply(say(each, n), 9, values=values) for n in samples])
        scored = suite_opened.score(batch, asked, replies, NullProgress())
        answers += [each.to_row() for each in scored]
    return {"answers": answers, "settings": settings[0],
            "rows": [row for _, row in read_rows(output / "questions.jsonl")]}


def ask(suite, batches, output, source="task", say=text):
    output.mkdir()
    spec = {"suite": suite, "source": {"kind": source}, "seed": 7,
            "folder": str(folder) if source == "task" else None}
    facts = questions_worker.run(spec, NullProgress(), output)
    return {"facts": facts, **answer(suite, batches, output, say)}


def refusal(suite, source="hub"):
    output = here / "refused"
    shutil.rmtree(output, ignore_errors=True)
    try:
        ask(suite, [], output, source)
    except PrepareError as error:
        return str(error)
    return "not refused"


def settings(task, **changes):
    return {"kind": "lm_eval", "task": task, "prompt_format": "completion", "max_tokens": 32,
            **changes}


found = {"lm_eval": {name: lm_evals(f"{name}.yaml") for name in ("choices", "text", "errors")}}
for name, suite, batches in [
    ("choices", settings("choices.yaml"), [range(5), range(5, 20)]),
    ("again", settings("choices.yaml"), [range(20)]),
    ("shots", settings("choices.yaml", num_fewshot=3), [range(5), range(5, 20)]),
    ("text", settings("text.yaml"), [range(20)]),
    ("strict", settings("text.yaml", metric="exact_match,strict"), [range(20)]),
    ("errors", settings("errors.yaml"), [range(20)]),
]:
    output = here / name
    found[name] = ask(suite, batches, output)
    found[name]["kept"] = sorted(
        str(path.relative_to(output)) for path in output.rglob("*")
        if path.is_file() and "dataset" not in path.parts
    )

unnamed = refusal(settings("unnamed.yaml"), "task")
counted = refusal(settings("counted.yaml"), "task")
mixed = refusal(settings("mixed.yaml"), "task")

# Asked again in another order of batches, after the user's own files are gone.
shutil.rmtree(folder / "data")
suite = settings("choices.yaml", num_fewshot=3)
found["later"] = answer(suite, [range(13, 20), range(13)], here / "shots")

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
    "data": refusal(settings("choices.yaml"), "task"),
    "unnamed": unnamed,
    "counted": counted,
    "mixed": mixed,
}


def without_hub(config, revision, target):
    # Stands for the Hub: questions of every subject, or sums.
    pro = [{"question": f"{s} {n}?", "options": ["x", "y", "z"], "answer": "B", "answer_index": 1,
            "category": s, "cot_content": "A: Let's think step by step. Yes."}
           for n in range(6) for s in presets()["mmlu_pro"].row["properties"]["category"]["enum"]]
    sums = [{"question": f"What is {n} plus {n}?", "answer": f"So.\\n#### {2 * n}"}
            for n in range(12)]
    split = Dataset.from_list(sums if "gsm8k" in config["task"] else pro)
    DatasetDict({"test": split, "validation": split, "train": split}).save_to_disk(str(target))


lm_eval_task.save_dataset = without_hub
found["members"] = ask(settings("mmlu_pro"), [range(84)], here / "members", "hub", steps)
found["datasets"] = len(list((here / "members/dataset").iterdir()))
repeats = settings("gsm8k_cot_self_consistency")
found["repeats"] = ask(repeats, [range(12)], here / "repeats", "hub", steps)
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
MIXED = """
task: sums_mixed
include: base.yaml
dataset_kwargs:
  data_files: {test: data/mixed.jsonl}
fewshot_split: test
output_type: generate_until
doc_to_target: "{{total}}"
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
        "unnamed.yaml": CHOICES.replace("choices.index(total)", "'B'"),
        "counted.yaml": CHOICES.replace("choices.index(total)", "choices.index(total) + 9"),
        "mixed.yaml": MIXED,
        "data/mixed.jsonl": "".join(
            json.dumps({"question": f"Half of {number}?", "total": total}) + "\n"
            for number, total in ((36, 18), (5, 2.5))
        ),
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
    result = run_in_evaluate(SCRIPT, folder, seconds=1200, HF_HOME=str(hub_cache))
    result["hub_cache"] = [str(path) for path in hub_cache.rglob("*.arrow")]
    return result


def number_of(row: dict[str, Any]) -> int:
    """A row's document, which is about its number plus itself."""
    return int(row["id"].rpartition("/")[2])


def test_documents_are_laid_out_by_number(found: dict[str, Any]) -> None:
    rows = found["choices"]["rows"]
    assert [row["id"] for row in rows] == [f"sums_choices/{row['doc_index']}" for row in rows]
    numbers = [row["doc_index"] for row in rows]
    assert sorted(numbers) == list(range(21)) != numbers
    facts = found["choices"]["facts"]
    assert facts["questions"] == 21


@pytest.mark.parametrize(
    ("name", "task", "metric", "lm_evals"),
    [
        ("choices", "choices", "acc", "acc,none"),
        ("text", "text", "exact_match,number", "exact_match,number"),
        ("strict", "text", "exact_match,strict", "exact_match,strict"),
        ("errors", "errors", "1 - wrongness", "wrongness,none"),
    ],
)
def test_scores_are_lm_evals(
    found: dict[str, Any], name: str, task: str, metric: str, lm_evals: str
) -> None:
    assert found[name]["facts"]["metric"] == metric
    theirs = {int(number): value for number, value in found["lm_eval"][task][lm_evals].items()}
    if metric.startswith("1 - "):
        theirs = {number: 1 - value for number, value in theirs.items()}
    scores = {number_of(row): row["score"] for row in found[name]["answers"]}
    assert len(scores) == 20
    assert scores == {number: theirs[number] for number in scores}
    assert len(set(scores.values())) == (1 if name == "strict" else 2)


def test_batches_change_nothing(found: dict[str, Any]) -> None:
    assert found["choices"]["answers"] == found["again"]["answers"]


def test_examples_hang_on_the_question_alone(found: dict[str, Any]) -> None:
    """Asked in other batches, later, and without the user's data: the same prompts."""
    shots, later = found["shots"], found["later"]
    by_id = {answer["id"]: answer for answer in shots["answers"]}
    assert {answer["id"]: answer for answer in later["answers"]} == by_id
    without = {answer["id"]: answer["prompt_sha256"] for answer in found["choices"]["answers"]}
    assert all(by_id[name]["prompt_sha256"] != digest for name, digest in without.items())


def test_documents_go_through_the_tasks_own_code(found: dict[str, Any]) -> None:
    text = found["text"]["facts"]
    assert text["questions"] == 20, "one is left out"


def test_the_policys_length_holds_where_the_task_says_nothing(found: dict[str, Any]) -> None:
    assert found["text"]["settings"] == {"until": ["\n"], "max_gen_toks": 32}
    assert found["errors"]["settings"] == {
        "until": ["\n\n"],
        "max_gen_toks": 32,
        "do_sample": False,
        "temperature": 0.0,
    }


def test_what_the_task_needs_is_kept_beside_its_questions(found: dict[str, Any]) -> None:
    code = ["task/base.yaml", "task/text.yaml", "task/sums.py"]
    assert found["text"]["kept"] == sorted(["questions.jsonl", "task.json", *code])


def test_a_group_is_one_population_of_its_members(found: dict[str, Any]) -> None:
    members = found["members"]
    assert members["facts"]["task"] == "mmlu_pro"
    assert members["facts"]["questions"] == 14 * 6
    assert members["facts"]["metric"] == "exact_match,custom-extract"
    assert found["datasets"] == 1, "one dataset of all members is stored once"
    scores = {row["group"]: row["score"] for row in members["answers"]}
    assert len(scores) == 14
    assert {name for name, score in scores.items() if score} == {"mmlu_pro_law"}
    assert all(row["id"].startswith(row["group"]) for row in members["answers"])


def test_repeats_are_samples(found: dict[str, Any]) -> None:
    repeats = found["repeats"]
    assert repeats["facts"]["metric"] == "exact_match,score-first"
    assert repeats["settings"]["temperature"] == 0.2
    for row in repeats["answers"]:
        right = [text == f"The answer is {2 * number_of(row)}." for text in row["answer"]]
        assert len(right) == 64
        assert row["score"] == sum(right) / 64
    assert {row["score"] for row in repeats["answers"]} == {0.0, 0.5}


def test_nothing_is_left_in_the_users_cache(found: dict[str, Any]) -> None:
    assert found["hub_cache"] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("perplexity", ["word_perplexity", "mean over documents: none"]),
        ("aggregate", ["'perplexity'", "mean over documents: acc"]),
        ("group", ["the task's own code cannot be loaded", "math"]),
        ("tag", ["dataset cannot be read", "arc_challenge"]),
        ("unknown", ["no task 'gsm8'", "did you mean", "gsm8k"]),
        ("code", ["runs code that a model wrote", "mbpp"]),
        ("class", ["Python class", "squadv2"]),
        ("majority", ["one answer of several", "majority_vote", "self_consistency"]),
        ("metric", ["no metric 'acc'", "mean over documents: exact_match"]),
        ("filter", ["no metric 'exact_match,none'", "strict-match, flexible-extract"]),
        ("offline", ["dataset cannot be read", "gsm8k", "whether the Hub can be reached"]),
        ("unnamed", ["in 21 of 21 documents no choice is right", "from 0 on"]),
        ("mixed", ["reads the field 'total' as 18.0", "line 1", "texts"]),
        ("counted", ["lm-eval cannot ask the task's documents: IndexError", "from 0 on"]),
        ("data", ["data file of the task does not exist", "test.jsonl", "relative to the task"]),
    ],
)
def test_what_cannot_be_a_gate_is_refused(
    found: dict[str, Any], name: str, words: list[str]
) -> None:
    for word in words:
        assert word in found["refusals"][name]
