"""The suites' tasks under lm-eval itself: batches, samples with seeds, summaries' scores.

In the real evaluate environment, with a model that answers by a rule in the server's place.
"""

from __future__ import annotations

from typing import Any

import pytest
from run_in_evaluate import run_in_evaluate

SCRIPT = """
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate

from eval_gates import limited_call
from eval_gates.suites import rouge
from eval_gates.suites.generated_text import GeneratedText
from eval_gates.suites.humaneval import read_problems
from eval_gates.suites.json_lines import read_rows, write_rows
from pipeline.core.events import NullProgress
from pipeline.workers import questions as questions_worker
from pipeline.workers.evaluate import open_suite

here = Path(sys.argv[2])


class ByRule(LM):
    '''Says what it was asked, and with which seed; likes the choice of its prompt's length.'''

    def __init__(self):
        super().__init__()
        self.seen = []

    def generate_until(self, requests):
        self.seen += [list(request.args) for request in requests]
        return [f"{r.args[0][-40:]} {r.args[1].get('seed')}" for r in requests]

    def loglikelihood(self, requests):
        self.seen += [list(request.args) for request in requests]
        return [(-float((len(r.args[0]) + 7 * i) % 13), False) for i, r in enumerate(requests)]

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError


class Hostile(ByRule):
    '''Answers that lm-eval's checkers of IFEval cannot end, or end with a RecursionError.'''

    def generate_until(self, requests):
        return [GeneratedText("[" * 100_000 if "JSON" in request.args[0] else "a" * 40 + "!", 9)
                for request in requests]


def ask(suite, questions, batches, model=None):
    model = model or ByRule()
    opened = open_suite({"suite": suite, "questions": str(questions)})
    rows = [row for _, row in read_rows(questions)]
    answers = []
    for batch in batches:
        results = evaluate(
            lm=model, task_dict={"suite": opened.task}, samples={"suite": list(batch)},
            log_samples=True, bootstrap_iters=0,
        )
        (samples,) = results["samples"].values()
        assert [sample["doc_id"] for sample in samples] == list(batch)
        answers += opened.rows_of([rows[n] for n in batch], samples, NullProgress())
    return {"metric": opened.metric, "each": opened.requests_per_question, "answers": answers,
            "seen": model.seen, "ids": [row["id"] for row in rows]}


def laid_out(name, suite, source, folder=None):
    output = here / name
    output.mkdir()
    spec = {"suite": suite, "source": source, "folder": folder, "seed": 3}
    questions_worker.run(spec, NullProgress(), output)
    return output / "questions.jsonl"


found = {}
suite = {"kind": "rouge", "metric": "rougeLsum", "prompt_format": "completion", "max_tokens": 64}
questions = laid_out("rouge", suite, {"kind": "builtin"})
found["rouge"] = ask(suite, questions, [range(3, 8), range(0, 3)])

suite = {"kind": "humaneval", "prompt_format": "completion", "max_tokens": 64, "k": 2, "samples": 3,
         "sampling": {"temperature": 0.7},
         "problems": ["HumanEval/0", "HumanEval/1", "HumanEval/2"],
         "seconds_per_problem": 10, "memory_mb_per_problem": 512}
questions = laid_out("humaneval", suite, {"kind": "packages"})
found["humaneval"] = ask(suite, questions, [[0], [2, 1]])
greedy = {**suite, "samples": 1, "k": 1, "sampling": "greedy"}
found["greedy"] = ask(greedy, questions, [[1]])

suite = {"kind": "mmlu", "prompt_format": "cloze", "num_fewshot": 2}
questions = laid_out("mmlu", suite, {"kind": "packages"})
found["mmlu"] = ask(suite, questions, [range(60, 64), range(4)])
many = [row for _, row in read_rows(questions)] * 60
write_rows(here / "many.jsonl", many)
opened = open_suite({"suite": suite, "questions": str(here / "many.jsonl")})
began = time.monotonic()
for start in (0, len(many) - 16):
    batch = list(range(start, start + 16))
    evaluate(lm=ByRule(), task_dict={"s": opened.task}, samples={"s": batch}, bootstrap_iters=0)
found["seconds_a_batch_of_many"] = (time.monotonic() - began) / 2
found["many"] = len(many)

suite = {"kind": "needles", "lengths": [512], "cases": 6, "prompt_format": "completion"}
questions = laid_out("needles", suite, {"kind": "builtin"})
found["needles"] = ask(suite, questions, [range(2, 6), range(2)])
found["needles"]["values"] = {row["id"]: row["values"] for _, row in read_rows(questions)}

limited_call.CPU_SECONDS = 1.0
instructions = here / "instructions"
instructions.mkdir()
write_rows(instructions / "ifeval_test.jsonl", [
    {"prompt": "As JSON, please.", "instruction_id_list": ["detectable_format:json_format"],
     "kwargs": [{}]},
    {"prompt": "With these keywords.", "instruction_id_list": ["keywords:existence"],
     "kwargs": [{"keywords": ["(a|a)*$"]}]},
])
suite = {"kind": "ifeval", "prompt_format": "completion", "max_tokens": 64}
folder = {"kind": "folder", "digest": "x"}
questions = laid_out("ifeval", suite, folder, str(instructions))
found["hostile"] = ask(suite, questions, [range(2)], Hostile())["answers"]

text = "The cat sat on the mat. A dog ran away."
turned = "A dog ran away. The cat sat on the mat."
found["scores"] = {
    "same": rouge.score(text, [text]),
    "nothing in common": rouge.score("Seven ships!", [text]),
    "turned": rouge.score(turned, [text]),
    "best of two": rouge.score(text, ["Seven ships!", text]),
    "half in each": rouge.score("the cat sat there and ran",
                                ["the cat sat down now ok", "he was there and ran"]),
    "half in one": rouge.score("the cat sat there and ran", ["the cat sat down now ok"]),
    "empty": rouge.score("", [text]),
}
print("RESULT " + json.dumps(found))
"""

# The first test may have to build the environment.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    hub_cache = tmp_path_factory.mktemp("hub_cache")
    folder = tmp_path_factory.mktemp("suites")
    result = run_in_evaluate(SCRIPT, folder, HF_HOME=str(hub_cache))
    result["cached"] = [str(path) for path in hub_cache.rglob("*.arrow")]
    return result


def test_rows_are_of_the_questions_asked_in_the_order_asked(found: dict[str, Any]) -> None:
    for name, numbers in {
        "rouge": [3, 4, 5, 6, 7, 0, 1, 2],
        "humaneval": [0, 2, 1],
        "mmlu": [60, 61, 62, 63, 0, 1, 2, 3],
    }.items():
        ids = found[name]["ids"]
        assert [row["id"] for row in found[name]["answers"]] == [ids[n] for n in numbers]


def test_every_question_sends_as_many_requests_as_said(found: dict[str, Any]) -> None:
    for name, each in {"rouge": 1, "humaneval": 3, "greedy": 1, "mmlu": 4}.items():
        assert found[name]["each"] == each
        assert len(found[name]["seen"]) == each * len(found[name]["answers"])


def test_samples_have_seeds_of_their_own_and_keep_their_order(found: dict[str, Any]) -> None:
    suite = found["humaneval"]
    assert suite["metric"] == "pass@2"
    for row in suite["answers"]:
        assert len({text.rpartition(" ")[2] for text in row["answer"]}) == 3
        assert len(row["code"]) == len(row["outcome"]) == 3
        assert row["score"] == 0.0
    settings = [request[1] for request in suite["seen"]]
    assert len({s["seed"] for s in settings}) == 9, "a seed for each sample of each problem"
    again = [text.rpartition(" ")[2] for row in suite["answers"] for text in row["answer"]]
    assert again == [str(s["seed"]) for s in settings]
    assert {(s["temperature"], s["do_sample"], s["max_gen_toks"]) for s in settings} == {
        (0.7, True, 64)
    }


def test_one_sample_is_greedy_and_leaves_the_seed_alone(found: dict[str, Any]) -> None:
    (request,) = found["greedy"]["seen"]
    assert (request[1]["temperature"], request[1]["do_sample"]) == (0.0, False)
    assert "seed" not in request[1]
    assert isinstance(found["greedy"]["answers"][0]["answer"], str)


def test_choices_are_the_texts_in_the_cloze_form(found: dict[str, Any]) -> None:
    assert found["mmlu"]["metric"] == "acc_norm"
    for prompt, continuation in found["mmlu"]["seen"]:
        assert prompt.endswith("\nAnswer:")
        assert prompt.count("Question: ") == 3
        assert continuation.startswith(" ")
        assert len(continuation) > 1
    assert {row["score"] for row in found["mmlu"]["answers"]} <= {0.0, 1.0}


def test_a_batch_costs_what_it_asks_not_what_there_is(found: dict[str, Any]) -> None:
    assert found["many"] > 14_042
    assert found["seconds_a_batch_of_many"] < 10.0


def test_texts_with_needles_are_made_as_they_are_asked(found: dict[str, Any]) -> None:
    needles = found["needles"]
    asked = [needles["ids"][number] for number in (2, 3, 4, 5, 0, 1)]
    assert [row["id"] for row in needles["answers"]] == asked
    for name, (prompt, _) in zip(asked, needles["seen"], strict=True):
        assert all(value in prompt for value in needles["values"][name])


def test_answers_that_a_checker_cannot_end_score_0(found: dict[str, Any]) -> None:
    assert [row["score"] for row in found["hostile"]] == [0.0, 0.0]


def test_nothing_is_left_in_the_users_cache(found: dict[str, Any]) -> None:
    assert found["cached"] == []


METRICS = {"rouge1", "rouge2", "rougeL", "rougeLsum", "bleu"}


def test_a_summarys_row_has_every_score(found: dict[str, Any]) -> None:
    assert found["rouge"]["metric"] == "rougeLsum"
    for row in found["rouge"]["answers"]:
        assert row.keys() >= METRICS
        assert row["score"] == row["rougeLsum"]
        assert all(0 <= row[metric] <= 1 for metric in METRICS)


def test_scores_are_bounded_and_right_at_the_ends(found: dict[str, Any]) -> None:
    scores = found["scores"]
    assert scores["same"] == dict.fromkeys(METRICS, 1.0)
    assert scores["best of two"] == dict.fromkeys(METRICS, 1.0)
    assert scores["nothing in common"] == dict.fromkeys(METRICS, 0.0)
    assert scores["empty"] == dict.fromkeys(METRICS, 0.0)


def test_lsum_goes_sentence_by_sentence(found: dict[str, Any]) -> None:
    """Sentences in another order are the same summary to Lsum, but not to L."""
    turned = found["scores"]["turned"]
    assert turned["rougeLsum"] == turned["rouge1"] == 1.0
    assert turned["rougeL"] == pytest.approx(0.6)


def test_bleu_counts_against_all_references_at_once(found: dict[str, Any]) -> None:
    half, whole = found["scores"]["half in one"], found["scores"]["half in each"]
    assert half["rouge1"] == pytest.approx(0.5)
    assert whole["rouge1"] == pytest.approx(6 / 11), "of the one reference that fits best"
    assert whole["bleu"] > 1.5 * half["bleu"]
