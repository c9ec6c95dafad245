"""Multiple choice by one request a question, against lm-eval's own scored prompts.

On the real server with the demo model, question by question.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_in_evaluate import run_in_evaluate

from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.server import Server

QUESTIONS = {0: 24, 5: 12}  # by shots
# Served in float32, so that nothing but the way of asking could make a difference: seen are 2e-5.
# In bf16 a prompt's neighbours in a batch move a log-probability by up to 0.14, lm-eval's own
# answers at another concurrency by up to 0.10; a test of the method would have to look away.
NOISE = 0.001

SCRIPT = """
import json
import sys
import urllib.request

sys.path.insert(0, sys.argv[1])

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from eval_gates.ask import Client
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.suites import mmlu

spec = json.loads(sys.argv[3])
METRIC = "vllm:prompt_tokens_by_source_total"
SUBJECTS = {}
for row in mmlu.read_development():
    SUBJECTS.setdefault(row["subject"], []).append(row)


def tokens():
    '''Prompt tokens by where they came from, as the server counts them.'''
    with urllib.request.urlopen(spec["url"] + "/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(METRIC)]
    return {line.split('source="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


def questions(shots, count):
    '''Some of each of the first subjects; their examples are the questions of the next ones.'''
    names, found = list(SUBJECTS), []
    for number, subject in enumerate(names):
        others = [row for name in names[number + 1 : number + 3] for row in SUBJECTS[name]]
        pool = [{**other, "subject": subject} for other in others]
        found += mmlu.lay_out(SUBJECTS[subject][:4], pool, "letter", shots)
        if len(found) >= count:
            return found[:count]


def ours(asked, **settings):
    notes, heard = [], []
    client = Client(
        spec["url"], spec["model"], {}, concurrency=8, max_length=spec["max_length"],
        tokenizer=Tokenizer.load(spec["tokenizer"], {}, trust=False), answered=heard.append,
        note=notes.append, **settings,
    )
    values = [reply.values for (reply,) in client.ask(asked)]
    return {"values": values, "counts": client.counts, "notes": notes, "heard": sum(heard)}


def lm_evals(asked):
    model = LocalCompletionsAPI(
        model=spec["model"], base_url=spec["url"] + "/v1/completions", num_concurrent=8,
        tokenizer_backend="huggingface", tokenizer=spec["tokenizer"], timeout=600,
        max_length=spec["max_length"],
    )
    instances = [
        Instance(request_type="loglikelihood", doc={}, arguments=(question.prompt, choice), idx=n,
                 metadata=("t", number, 1))
        for number, question in enumerate(asked)
        for n, choice in enumerate(question.continuations)
    ]
    values = iter(model.loglikelihood(instances))
    found = [[next(values) for _ in question.continuations] for question in asked]
    return {"values": [[(float(v), bool(g)) for v, g in each] for each in found]}


def counted(call, *words, **settings):
    before = tokens()
    found = call(*words, **settings)
    return {**found, "tokens": {name: after - before[name] for name, after in tokens().items()}}


found = {}
for shots, count in spec["questions"].items():
    asked = questions(int(shots), count)
    # One request first: scored prompts do not read the prefix cache, but they fill it.
    found[shots] = {"once": counted(ours, asked), "scored": ours(asked, asks_once=False),
                    "lm_eval": counted(lm_evals, asked)}
print("RESULT " + json.dumps(found))
"""

# The first test may have to build the environments.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]


@pytest.fixture(scope="module")
def parity(
    server: Server, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    spec = {
        "url": server.url,
        "model": SERVED_NAME,
        "tokenizer": str(demo_model),
        "max_length": 4096,
        "questions": QUESTIONS,
    }
    folder = tmp_path_factory.mktemp("parity")
    return run_in_evaluate(SCRIPT, folder, json.dumps(spec), seconds=1200)


@pytest.fixture(params=sorted(QUESTIONS))
def asked(request: pytest.FixtureRequest, parity: dict[str, Any]) -> dict[str, Any]:
    """What all ways found, for each number of shots."""
    found: dict[str, Any] = parity[str(request.param)]
    assert len(found["once"]["values"]) == QUESTIONS[request.param]
    return found


def logprobs(found: dict[str, Any]) -> list[list[float]]:
    return [[value for value, _ in row] for row in found["values"]]


def letters(found: dict[str, Any]) -> list[int]:
    return [row.index(max(row)) for row in logprobs(found)]


def test_requests_are_counted(asked: dict[str, Any]) -> None:
    once, scored, count = asked["once"], asked["scored"], len(asked["once"]["values"])
    one = {"requests": count, "one_request": count, "scored": 0, "fallen_back": 0}
    assert once["counts"] == one
    each = {"requests": 4 * count, "one_request": 0, "scored": count, "fallen_back": count}
    assert scored["counts"] == each
    assert once["heard"] == scored["heard"] == count
    assert once["notes"] == []


@pytest.mark.parametrize("way", ["once", "scored"])
def test_the_same_letter_is_chosen(asked: dict[str, Any], way: str) -> None:
    assert letters(asked[way]) == letters(asked["lm_eval"])


@pytest.mark.parametrize("way", ["once", "scored"])
def test_the_same_log_probabilities(asked: dict[str, Any], way: str) -> None:
    """Not only their differences: they are of the whole vocabulary's distribution."""
    values = [value for row in logprobs(asked[way]) for value in row]
    theirs = [value for row in logprobs(asked["lm_eval"]) for value in row]
    differences = [abs(one - other) for one, other in zip(values, theirs, strict=True)]
    assert max(differences) <= NOISE
    assert max(theirs) - min(theirs) > 1, "a comparison of equal numbers says nothing"
    assert len(set(theirs)) > len(theirs) / 2


@pytest.mark.parametrize("way", ["once", "scored"])
def test_the_same_letters_are_greedy(asked: dict[str, Any], way: str) -> None:
    flags = [[greedy for _, greedy in row] for row in asked["lm_eval"]["values"]]
    assert [[greedy for _, greedy in row] for row in asked[way]["values"]] == flags
    assert {True, False} == {flag for row in flags for flag in row}


def test_shared_examples_come_from_the_prefix_cache(parity: dict[str, Any]) -> None:
    once, lm_eval = parity["5"]["once"]["tokens"], parity["5"]["lm_eval"]["tokens"]
    assert once["local_cache_hit"] > once["local_compute"]
    assert lm_eval["local_cache_hit"] == 0
    assert lm_eval["local_compute"] > 8 * once["local_compute"]
