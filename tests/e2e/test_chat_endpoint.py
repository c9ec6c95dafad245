"""Endpoints asked by their chat API, on a real server: the demo model.

Both forms of one server agree within the noise floor; `prepare gate` without a tokenizer passes a
model against itself, and fails one that a proxy makes answer at random.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from chat_stand_ins import OLLAMA, OPENAI_NEWER, TRTLLM, ChatStandIn
from prepare_command import prepare
from run_in_evaluate import run_in_evaluate

from pipeline.serving.server import Server
from pipeline.serving.serving_names import SERVED_NAME

# The first test may have to build the environments.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

POLICY = """
name: itself
summary: by messages alone
suites: {rouge: {kind: rouge, margins: {fp8: 0.08}, max_tokens: 32,
  noise_floor_questions: 8}}
"""
LETTERS = 48

FORMS = r"""
import json
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from lm_eval.evaluator import evaluate

from eval_gates.suites import mmlu
from eval_gates.suites.answer_rows import choice_fields
from eval_gates.suites.fixed_task import task_of
from eval_gates.suites.json_lines import write_rows
from eval_gates.suites.rouge import read_builtin
from pipeline.core.events import NullProgress
from pipeline.workers.evaluate import EvalClient, client

here, url, model, served_name, letters = Path(sys.argv[2]), *sys.argv[3:7]
form = {"length_key": "max_tokens", "extended": True, "top_logprobs": 20}
questions = mmlu.with_examples(mmlu.read_quiz()[: int(letters)], [], "letter", 0)
summaries = [{"id": f"d/{n}", **row} for n, row in enumerate(read_builtin()[:12])]
write_rows(here / "questions.jsonl", summaries)


def spec_of(chat):
    suite = {"kind": "rouge", "prompt_format": "chat", "max_tokens": 32}
    return {"suite": suite, "questions": str(here / "questions.jsonl"), "model": served_name,
            "asks_once": True, "url": url, "tokenizer": model, "trust_remote_code": False,
            "concurrency": 8, "max_length": 4096, "chat": chat, "side": "candidate"}


def ask(chat):
    heard = []
    lm = client(spec_of(chat), heard.append, NullProgress())
    results = evaluate(lm=lm, task_dict={"s": task_of(mmlu.task_config("letter"), questions)},
                       log_samples=True, bootstrap_iters=0, apply_chat_template=True,
                       fewshot_as_multiturn=True)
    (samples,) = results["samples"].values()
    samples.sort(key=lambda sample: sample["doc_id"])
    rows = EvalClient(spec_of(chat), summaries, NullProgress(), 12).ask(range(12))
    return {"letters": [choice_fields(sample, "acc") for sample in samples],
            "requests": lm.statistics()["requests"], "heard": sum(heard),
            "texts": [row["answer"] for row in rows], "tokens": [row["tokens"] for row in rows]}


print("RESULT " + json.dumps({"chat": ask(form), "completions": ask(None), "again": ask(None)}))
"""


SCHEMAS = r"""
import json
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from eval_gates.suites import mmlu
from eval_gates.suites.json_lines import write_rows
from pipeline.core.events import NullProgress
from pipeline.workers.evaluate import EvalClient

here, urls, form = Path(sys.argv[2]), sys.argv[3].split(), json.loads(sys.argv[4])
questions = mmlu.with_examples(mmlu.read_quiz()[:3], [], "letter", 0)
letters = [{"id": f"q/{n}", **row} for n, row in enumerate(questions)]
texts = [{"id": f"d/{n}", "document": "A text.", "references": ["B 2 2"]} for n in range(3)]


def ask(url, suite, questions, side, chat):
    write_rows(here / "questions.jsonl", questions)
    spec = {"suite": suite, "questions": str(here / "questions.jsonl"), "model": "m", "url": url,
            "concurrency": 4, "chat": chat, "side": side}
    return EvalClient(spec, questions, NullProgress(), 3).ask(range(3))


found = []
for url, length_key in zip(urls, form["length_keys"]):
    chat = {"length_key": length_key, "extended": False, "top_logprobs": form["top_logprobs"]}
    suite = {"kind": "rouge", "prompt_format": "chat", "max_tokens": 3}
    found.append({
        "letters": {side: ask(url, {"kind": "mmlu"}, letters, side, chat)
                    for side in ("baseline", "candidate")},
        "texts": ask(url, suite, texts, "candidate", chat),
    })
print("RESULT " + json.dumps(found))
"""
# No letter is among the first two.
UNCLEAR = {"The": 0.5, "I": 0.3, "B": 0.1, " A": 0.1}


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    servers = [
        ChatStandIn(OPENAI_NEWER),
        ChatStandIn(replace(OLLAMA, most_logprobs=5), UNCLEAR),
        ChatStandIn(TRTLLM),
    ]
    keys = ["max_completion_tokens", "max_tokens", "max_tokens"]
    form = json.dumps({"length_keys": keys, "top_logprobs": 2})
    with ExitStack() as stack:
        urls = [stack.enter_context(server).url for server in servers]
        folder = tmp_path_factory.mktemp("schemas")
        found: Any = run_in_evaluate(SCHEMAS, folder, " ".join(urls), form)
    return list(found)


def test_servers_of_other_schemas_are_asked_in_their_form(schemas: list[dict[str, Any]]) -> None:
    for number in (0, 2):
        for rows in schemas[number]["letters"].values():
            assert [row["answer"].index(max(row["answer"])) for row in rows] == [1, 1, 1]
            assert [row["unlisted"] for row in rows] == [[2, 3]] * 3  # "B" and " A" are listed
            assert not any("undecidable" in row for row in rows)
    for found in schemas:
        assert [row["tokens"] for row in found["texts"]] == [[3]] * 3
    assert schemas[0]["texts"][0]["answer"] == "B 2 2"


def test_undecidable_questions_count_against_the_candidate(schemas: list[dict[str, Any]]) -> None:
    letters = schemas[1]["letters"]
    for side, score in (("baseline", 1.0), ("candidate", 0.0)):
        assert [(row["undecidable"], row["score"]) for row in letters[side]] == [(True, score)] * 3


@pytest.fixture(scope="module")
def forms(
    server: Server, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("forms")
    words = (server.url, str(demo_model), SERVED_NAME, str(LETTERS))
    return run_in_evaluate(FORMS, folder, *words)


def letter(row: dict[str, Any]) -> int:
    values: list[float] = row["answer"]
    return values.index(max(values))


def differences(one: dict[str, Any], other: dict[str, Any]) -> int:
    """Questions with another letter, of those that both show."""
    pairs = zip(one["letters"], other["letters"], strict=True)
    shown = [pair for pair in pairs if not any(row.get("undecidable") for row in pair)]
    assert len(shown) > LETTERS / 2
    return sum(letter(a) != letter(b) for a, b in shown)


def test_both_forms_choose_the_same_letters(forms: dict[str, Any]) -> None:
    chat, completions, again = forms["chat"], forms["completions"], forms["again"]
    assert chat["requests"] == LETTERS
    assert chat["heard"] == 4 * LETTERS
    floor = differences(completions, again)
    # A letter with a space before it is the same choice by chat, and another token else.
    assert differences(chat, completions) <= floor + 1


def test_listed_values_are_those_of_the_whole_distribution(forms: dict[str, Any]) -> None:
    pairs = zip(forms["chat"]["letters"], forms["completions"]["letters"], strict=True)
    listed = bounded = 0
    for chat, exact in pairs:
        for number, (value, true) in enumerate(zip(chat["answer"], exact["answer"], strict=True)):
            # The largest of several spellings, or a bound: neither is below the one.
            assert value >= true - 0.002
            listed += number not in chat.get("unlisted", ())
            bounded += number in chat.get("unlisted", ())
    assert listed > 0, bounded


def test_both_forms_generate_the_same_texts(forms: dict[str, Any]) -> None:
    chat, completions, again = forms["chat"], forms["completions"], forms["again"]
    floor = sum(a != b for a, b in zip(completions["texts"], again["texts"], strict=True))
    changed = sum(a != b for a, b in zip(chat["texts"], completions["texts"], strict=True))
    assert changed <= floor
    assert all(chat["texts"])
    if not changed:
        assert chat["tokens"] == completions["tokens"]


@contextmanager
def answers_at_random(url: str) -> Iterator[str]:
    """A proxy of a server that replaces every question, and asks for the largest temperature."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.forward(None)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            other = {"messages": [{"role": "user", "content": "Write."}], "temperature": 2.0}
            self.forward(json.dumps({**body, **other}).encode())

        def forward(self, body: bytes | None) -> None:
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(url + self.path, body, headers)
            with urllib.request.urlopen(request) as answer:
                content = answer.read()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_port}"
        proxy.shutdown()


def gate(store: Path, baseline: str, candidate: str) -> tuple[int, dict[str, Any]]:
    """The exit code of the command, and what it printed."""
    store.mkdir(exist_ok=True)
    policy = store / "policy.yaml"
    policy.write_text(POLICY)
    answer = prepare(
        store,
        "gate",
        *("--baseline", f"{baseline}/v1", "--baseline-model", SERVED_NAME),
        *("--candidate", candidate, "--candidate-model", SERVED_NAME),
        *("--policy", str(policy), "--json"),
    )
    return answer.returncode, json.loads(answer.stdout)


def test_a_model_is_not_inferior_to_itself(server: Server, tmp_path: Path) -> None:
    store = tmp_path / "store"
    code, report = gate(store, server.url, server.url)
    assert code == 0, report
    assert report["command"]["api"] == "chat"
    (found,) = report["variants"][0]["gates"]
    assert (found["prompt_format"], found["verdict"]) == ("chat", "pass")
    assert found["noise_floor"]["n"] == 8
    assert found["baseline_lengths"]["tokens"] > 0
    verified = prepare(store, "verify", "--json")
    assert verified.returncode == 0, verified.stdout


def test_a_model_that_answers_at_random_fails(server: Server, tmp_path: Path) -> None:
    with answers_at_random(server.url) as candidate:
        code, report = gate(tmp_path / "store", server.url, candidate)
    assert code == 4, report
    assert report["variants"][0]["gates"][0]["verdict"] == "fail"
