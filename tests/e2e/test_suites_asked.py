"""The suites' batches, samples with seeds, and summaries' scores.

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

from prepare import limited_call
from eval_gates.ask import Client
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.rows import Reply
from eval_gates.suites import rouge
from eval_gates.suites.json_lines import read_rows, write_rows
from prepare.events import NullProgress
from eval_gates import questions_worker
from eval_gates.evaluate_worker import OpenSuite

here = Path(sys.argv[2])


class Words:
    '''A tokenizer of words.'''

    all_special_tokens = []

    def __call__(self, text, **_):
        self.input_ids = [hash(word) % 1000 for word in text.split()]
        return self


def by_rule(question, samples):
    '''Likes the choice of its prompt's length; else says what it was asked.'''
    length, choices = len(question.prompt), range(len(question.continuations))
    values = [(-float((length + 7 * n) % 13), False) for n in choices]
    return [Reply(f"{question.prompt[-40:]} {n}", 9, values=tuple(values)) for n in range(samples)]


def hostile(question, samples):
    '''Answers that lm-eval's checkers of IFEval cannot end, or end with a RecursionError.'''
    return [Reply("[" * 100_000 if "JSON" in question.prompt else "a" * 40 + "!", 9)]


def ask(suite, questions, batches, rule=by_rule):
    opened = OpenSuite(suite, questions)
    client = Client("http://none", "m", opened.settings, concurrency=1, max_length=10**6,
                    tokenizer=Tokenizer(Words(), {}), answered=print, note=print)
    answers, seen, bodies = [], [], []
    for batch in batches:
        asked = opened.render(batch, None)
        seen += asked
        bodies += [r.body for q in asked if not q.continuations for r in client.requests_of(q)]
        replies = [rule(each, opened.settings.get("samples", 1)) for each in asked]
        scored = opened.score(batch, asked, replies, NullProgress())
        answers += [each.to_row() for each in scored]
    return {"answers": answers, "bodies": bodies, "ids": [each.id for each in opened.questions],
            "seen": [[each.prompt, list(each.continuations)] for each in seen]}


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
found["humaneval"] = ask(suite, questions, [range(0, 1), range(1, 3)])
greedy = {**suite, "samples": 1, "k": 1, "sampling": "greedy"}
found["greedy"] = ask(greedy, questions, [range(1, 2)])

suite = {"kind": "mmlu", "prompt_format": "cloze", "num_fewshot": 2}
questions = laid_out("mmlu", suite, {"kind": "packages"})
found["mmlu"] = ask(suite, questions, [range(60, 64), range(4)])
many = [row for _, row in read_rows(questions)] * 60
write_rows(here / "many.jsonl", many)
opened = OpenSuite(suite, here / "many.jsonl")
began = time.monotonic()
for start in (0, len(many) - 16):
    batch = range(start, start + 16)
    asked = opened.render(batch, None)
    opened.score(batch, asked, [by_rule(each, 1) for each in asked], NullProgress())
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
found["hostile"] = ask(suite, questions, [range(2)], hostile)["answers"]

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
        "humaneval": [0, 1, 2],
        "mmlu": [60, 61, 62, 63, 0, 1, 2, 3],
    }.items():
        ids = found[name]["ids"]
        assert [row["id"] for row in found[name]["answers"]] == [ids[n] for n in numbers]


def test_samples_have_seeds_of_their_own(found: dict[str, Any]) -> None:
    suite = found["humaneval"]
    for row in suite["answers"]:
        assert len(row["answer"]) == len(row["code"]) == len(row["outcome"]) == 3
        assert row["score"] == 0.0
    bodies = suite["bodies"]
    assert len({body["seed"] for body in bodies}) == 9, "a seed for each sample of each problem"
    assert {(body["temperature"], body["max_tokens"]) for body in bodies} == {(0.7, 64)}


def test_one_sample_is_greedy(found: dict[str, Any]) -> None:
    (body,) = found["greedy"]["bodies"]
    assert body["temperature"] == 0.0
    assert isinstance(found["greedy"]["answers"][0]["answer"], str)


def test_choices_are_the_texts_in_the_cloze_form(found: dict[str, Any]) -> None:
    for prompt, continuations in found["mmlu"]["seen"]:
        assert prompt.endswith("\nAnswer:")
        assert prompt.count("Question: ") == 3
        assert all(text.startswith(" ") and len(text) > 1 for text in continuations)
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
