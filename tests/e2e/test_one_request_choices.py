"""Multiple choice by one request a question, against lm-eval's own scored prompts.

On the real server with the demo model, question by question; and, on a small server that does as
it is told, what happens where an endpoint cannot be asked so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_in_evaluate import run_in_evaluate

from pipeline.serving.server import Server
from pipeline.serving.serving_names import SERVED_NAME

ROOT = Path(__file__).parents[2]
QUESTIONS = {0: 40, 5: 20}  # by shots
# Served in float32, so that nothing but the way of asking could make a difference: seen are 2e-5.
# In bf16 a prompt's neighbours in a batch move a log-probability by up to 0.14, lm-eval's own
# answers at another concurrency by up to 0.10; a test of the method would have to look away.
NOISE = 0.001

COMMON = """
import json
import sys

sys.path.insert(0, sys.argv[1])

from lm_eval.evaluator import evaluate
from lm_eval.models.openai_completions import LocalCompletionsAPI

from eval_gates.suites import mmlu
from eval_gates.suites.completions_model import completions_model
from eval_gates.suites.fixed_task import task_of

spec = json.loads(sys.argv[3])


def ours(url, answered, note, max_length=spec["max_length"]):
    return completions_model(
        url=url, model=spec["model"], tokenizer=spec["tokenizer"], trust_remote_code=False,
        concurrency=8, max_length=max_length, timeout_seconds=600, answered=answered, note=note,
    )


def lm_evals(url):
    return LocalCompletionsAPI(
        model=spec["model"], base_url=url + "/v1/completions", tokenizer_backend="huggingface",
        tokenizer=spec["tokenizer"], num_concurrent=8, max_length=spec["max_length"], timeout=600,
    )
"""

PARITY = (
    COMMON
    + """
import urllib.request

METRIC = "vllm:prompt_tokens_by_source_total"


def tokens():
    '''Prompt tokens by where they came from, as the server counts them.'''
    with urllib.request.urlopen(spec["url"] + "/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(METRIC)]
    return {line.split('source="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


def questions(shots, count):
    '''Some of each of the first subjects; their examples are the questions of the next ones.'''
    by_subject = {}
    for question in mmlu.read_builtin().questions:
        by_subject.setdefault(question["subject"], []).append(question)
    names = list(by_subject)
    rows = []
    for number, subject in enumerate(names):
        others = [q for name in names[number + 1 : number + 3] for q in by_subject[name]]
        pool = [{**other, "subject": subject} for other in others]
        rows += mmlu.with_examples(by_subject[subject][:4], pool, "letter", shots)
        if len(rows) >= count:
            return rows[:count]


def ask(model, rows):
    before = tokens()
    task = task_of(mmlu.task_config("letter"), rows)
    results = evaluate(lm=model, task_dict={"s": task}, log_samples=True, bootstrap_iters=0)
    (samples,) = results["samples"].values()
    samples.sort(key=lambda sample: sample["doc_id"])
    return {
        "logprobs": [[float(r[0]) for r in sample["filtered_resps"]] for sample in samples],
        "greedy": [[str(r[1]) for r in sample["filtered_resps"]] for sample in samples],
        "scores": [sample["acc"] for sample in samples],
        "tokens": {source: after - before[source] for source, after in tokens().items()},
    }


found = {}
for shots, count in spec["questions"].items():
    rows = questions(int(shots), count)
    heard, notes = [], []
    model = ours(spec["url"], heard.append, notes.append)
    # Ours first: scored prompts do not read the prefix cache, but they fill it.
    found[shots] = {"ours": ask(model, rows), "statistics": model.statistics(), "heard": heard,
                    "notes": notes, "lm_eval": ask(lm_evals(spec["url"]), rows)}
print("RESULT " + json.dumps(found))
"""
)

STAND_IN = (
    COMMON
    + """
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lm_eval.api.instance import Instance
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from pipeline.core.errors import StageError

WORDS = "zero one two three four five six seven eight nine yes no maybe".split()
spell = Tokenizer(WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="zero"))
spell.pre_tokenizer = Whitespace()
PreTrainedTokenizerFast(tokenizer_object=spell, unk_token="zero", eos_token="zero").save_pretrained(
    spec["tokenizer"]
)


def logprob(before, token):
    '''Score a token after others: any number that depends on all of them.'''
    return -0.1 - (sum((n + 2) * t for n, t in enumerate(before)) * 7 + token * 31) % 97 / 16


def best(before):
    return max(range(len(WORDS)), key=lambda token: logprob(before, token))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen.append(asked)
        chosen = asked.get("logprob_token_ids")
        if "logprob_token_ids" in asked and behaviour == "refuses":
            return self.answer(400, {"message": "unknown field logprob_token_ids"})
        if behaviour == "stumbles" and seen.count(asked) == 1:
            return self.answer(500, {"message": "try again"})
        if behaviour == "refuses some" and len(asked["prompt"]) == 3 and chosen:
            return self.answer(400, {"message": "not this one"})
        prompt = asked["prompt"] if isinstance(asked["prompt"][0], int) else asked["prompt"][0]
        tokens = prompt + [best(prompt)]
        if asked.get("echo"):
            values = [None] + [logprob(tokens[:n], tokens[n]) for n in range(1, len(tokens))]
            tops = [None] + [
                {"own": values[n], "top": logprob(tokens[:n], best(tokens[:n]))}
                for n in range(1, len(tokens))
            ]
            logprobs = {"token_logprobs": values, "top_logprobs": tops}
        elif asked.get("logprobs"):
            shown = [tokens[-1]] + (chosen if behaviour != "ignores" else [])
            top = {f"token_id:{token}": logprob(prompt, token) for token in shown}
            logprobs = {"token_logprobs": [logprob(prompt, tokens[-1])], "top_logprobs": [top]}
        else:
            logprobs = None
        if behaviour in ("null", "no text"):
            logprobs = None
        choice = {"index": 0, "text": " " + WORDS[tokens[-1]], "logprobs": logprobs}
        choices = [] if behaviour == "no text" else [choice]
        self.answer(200, {"choices": choices, "usage": {"completion_tokens": 1}})

    def answer(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


def choices(number, context, words):
    return [
        Instance(request_type="loglikelihood", doc={}, arguments=(context, " " + word), idx=n,
                 metadata=("t", number, 1))
        for n, word in enumerate(words)
    ]


LETTERS = ["yes", "no", "maybe"]
SHORT = [
    *choices(0, "three one two", LETTERS),
    *choices(1, "one", LETTERS),
    *choices(2, "one two three four", LETTERS),
    *choices(3, "one two three five", [*LETTERS, "yes"]),  # a choice may be there twice
]
LONG = choices(4, "one two", ["yes", "no no", "maybe"])
MIXED = [SHORT[0], *LONG, *SHORT[1:]]
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}"

behaviour, seen = "answers", []
expected = {
    "short": lm_evals(url).loglikelihood(SHORT),
    "mixed": lm_evals(url).loglikelihood(MIXED),
}
found = {"expected": expected}
for behaviour in ("answers", "refuses", "ignores", "stumbles", "refuses some"):
    seen, heard, notes = [], [], []
    model = ours(url, heard.append, notes.append)
    first = model.loglikelihood(SHORT)
    second = model.loglikelihood(MIXED)
    found[behaviour] = {"short": first, "mixed": second, "statistics": model.statistics(),
                        "heard": sum(heard), "notes": notes, "asked": seen}


def refusal(call):
    try:
        return repr(call())
    except StageError as error:
        return str(error)


def generation(room):
    settings = {"until": ["."], "max_gen_toks": room}
    return [Instance(request_type="generate_until", doc={}, idx=0, metadata=("t", 0, 1),
                     arguments=("one two three four", settings))]


behaviour, seen = "answers", []
small = ours(url, lambda count: None, lambda text: None, max_length=6)
# A server that ignores `logprobs`, or one that has no texts at all.
for behaviour in ("null", "no text"):
    seen = []
    found[behaviour] = {
        "choices": refusal(lambda: ours(
            url, lambda count: None, lambda text: None).loglikelihood(SHORT)),
        "generation": refusal(lambda: ours(
            url, lambda count: None, lambda text: None).generate_until(generation(1))),
    }
behaviour = "answers"
found["fits"] = small.loglikelihood(SHORT)
found["generated"] = small.generate_until(generation(1))
found["too_long"] = {
    "generation": refusal(lambda: small.generate_until(generation(2))),
    "choices": refusal(lambda: ours(
        url, lambda count: None, lambda text: None, max_length=5).loglikelihood(SHORT)),
}
print("RESULT " + json.dumps(found))
"""
)

# The first test may have to build the environments.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800), pytest.mark.of_everything]


# --- the real server ----------------------------------------------------------------------------


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
    return run_in_evaluate(PARITY, tmp_path_factory.mktemp("parity"), json.dumps(spec), seconds=900)


@pytest.fixture(params=sorted(QUESTIONS))
def asked(request: pytest.FixtureRequest, parity: dict[str, Any]) -> dict[str, Any]:
    """What both ways found, for each number of shots."""
    found: dict[str, Any] = parity[str(request.param)]
    assert len(found["ours"]["logprobs"]) == QUESTIONS[request.param]
    return found


def chosen(logprobs: list[float]) -> int:
    return logprobs.index(max(logprobs))


def test_every_question_was_one_request(asked: dict[str, Any]) -> None:
    count = len(asked["ours"]["logprobs"])
    assert asked["statistics"] == {
        "requests": count,
        "one_request": count,
        "scored": 0,
        "fallen_back": 0,
    }
    assert asked["heard"] == [4] * count
    assert asked["notes"] == []


def test_the_same_letter_is_chosen(asked: dict[str, Any]) -> None:
    letters = [chosen(row) for row in asked["ours"]["logprobs"]]
    assert letters == [chosen(row) for row in asked["lm_eval"]["logprobs"]]
    assert asked["ours"]["scores"] == asked["lm_eval"]["scores"]


def test_the_same_log_probabilities(asked: dict[str, Any]) -> None:
    """Not only their differences: they are of the whole vocabulary's distribution."""
    values = [value for row in asked["ours"]["logprobs"] for value in row]
    scored = [value for row in asked["lm_eval"]["logprobs"] for value in row]
    differences = [abs(one - other) for one, other in zip(values, scored, strict=True)]
    assert max(differences) <= NOISE
    assert max(scored) - min(scored) > 1, "a comparison of equal numbers says nothing"
    assert len(set(scored)) > len(scored) / 2


def test_the_same_letters_are_greedy(asked: dict[str, Any]) -> None:
    assert asked["ours"]["greedy"] == asked["lm_eval"]["greedy"]
    assert {"True", "False"} == {flag for row in asked["lm_eval"]["greedy"] for flag in row}


def test_shared_examples_come_from_the_prefix_cache(parity: dict[str, Any]) -> None:
    ours, lm_eval = parity["5"]["ours"]["tokens"], parity["5"]["lm_eval"]["tokens"]
    assert ours["local_cache_hit"] > ours["local_compute"]
    assert lm_eval["local_cache_hit"] == 0
    assert lm_eval["local_compute"] > 8 * ours["local_compute"]


# --- endpoints of all kinds ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("endpoints")
    spec = {"model": "m", "tokenizer": str(folder / "tokenizer"), "max_length": 64}
    return run_in_evaluate(STAND_IN, folder, json.dumps(spec), seconds=900)


@pytest.mark.parametrize("kind", ["answers", "refuses", "ignores", "stumbles", "refuses some"])
def test_whatever_the_endpoint_answers_are_lm_evals(endpoints: dict[str, Any], kind: str) -> None:
    assert endpoints[kind]["short"] == endpoints["expected"]["short"]
    assert endpoints[kind]["mixed"] == endpoints["expected"]["mixed"]
    assert endpoints[kind]["heard"] == 13 + 16
    flags = {flag for _, flag in endpoints["expected"]["short"]}
    assert len({value for value, _ in endpoints["expected"]["short"]}) > 6
    assert flags <= {True, False}


@pytest.mark.parametrize(
    ("kind", "requests", "one_request", "fallen_back"),
    [
        ("answers", 4 + 4 + 3, 8, 0),
        ("stumbles", 2 * 4 + 4 + 2 * 3, 8, 0),  # every request twice, the first time
        ("refuses", 1 + 13 + 16, 0, 8),
        ("ignores", 1 + 13 + 16, 0, 8),
        ("refuses some", 4 + 3 + 4 + 3 + 3, 6, 2),
    ],
)
def test_requests_are_counted(
    endpoints: dict[str, Any], kind: str, requests: int, one_request: int, fallen_back: int
) -> None:
    assert endpoints[kind]["statistics"] == {
        "requests": requests,
        "one_request": one_request,
        "scored": fallen_back + 1,  # and the item with a longer choice
        "fallen_back": fallen_back,
    }
    assert len(endpoints[kind]["asked"]) == requests


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("refuses", "it answered 400: "),
        ("ignores", "lacks the log-probabilities of the tokens asked for"),
    ],
)
def test_an_endpoint_that_cannot_is_asked_once_and_noted(
    endpoints: dict[str, Any], kind: str, reason: str
) -> None:
    assert endpoints["answers"]["notes"] == endpoints["stumbles"]["notes"] == []
    (note,) = endpoints[kind]["notes"]
    assert reason in note
    assert "scored by its own request" in note
    assert sum("logprob_token_ids" in asked for asked in endpoints[kind]["asked"]) == 1


def test_a_prompt_is_not_cut(endpoints: dict[str, Any]) -> None:
    assert endpoints["fits"] == endpoints["expected"]["short"]
    assert len(endpoints["generated"]) == 1
    for kind, count in (("choices", "2 of 4"), ("generation", "1 of 1")):
        assert "too long" in endpoints["too_long"][kind], endpoints["too_long"]
        assert count in endpoints["too_long"][kind]
        assert "raise max-model-len" in endpoints["too_long"][kind]


def test_what_the_endpoint_leaves_out_is_named(endpoints: dict[str, Any]) -> None:
    """And is an error of the endpoint's, not a bare TypeError of lm-eval's."""
    assert "log-probabilities" in endpoints["null"]["choices"]
    assert "/v1/completions" in endpoints["null"]["choices"]
    assert endpoints["null"]["generation"].startswith("[")  # its texts are there
    assert "log-probabilities" in endpoints["no text"]["choices"]
    assert "has no text" in endpoints["no text"]["generation"]
