"""Generated answers: requests in flight, thoughts, tokens, under lm-eval itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_in_evaluate import run_in_evaluate

from pipeline.serving.server import Server
from pipeline.serving.serving_names import SERVED_NAME

CONCURRENCY = 8

STAND_IN = """
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from eval_gates.suites.json_lines import write_rows
from pipeline.core.events import NullProgress
from pipeline.workers.evaluate import EvalClient

here, concurrency = Path(sys.argv[2]), int(sys.argv[3])
spell = Tokenizer(WordLevel({"zero": 0, "one": 1}, unk_token="zero"))
spell.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=spell, unk_token="zero", eos_token="zero")
tokenizer.chat_template = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %} <think>{% endif %}"
)
tokenizer.save_pretrained(here / "tokenizer")
lock, in_flight, asked = threading.Lock(), [0, 0], []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            in_flight[0] += 1
            in_flight[1] = max(in_flight)
            asked.append({"path": self.path, **body})
            is_closed = len(asked) % 2 > 0
        time.sleep(0.2)
        with lock:
            in_flight[0] -= 1
        text = "a short thought</think> one. Two." if is_closed else "a thought"
        reason = "stop" if is_closed else "length"
        answer = {"choices": [{"text": text, "finish_reason": reason}],
                  "usage": {"completion_tokens": len(text)}}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
questions = [{"id": f"d/{n}", "document": f"Text {n}.", "references": [f"one {n}"]}
             for n in range(4)]
write_rows(here / "questions.jsonl", questions)


def ask(**changes):
    asked.clear()
    in_flight[1] = 0
    suite = {"kind": "rouge", "prompt_format": "chat", "samples": 16, "max_tokens": 64,
             "sampling": {"temperature": 0.6}, **changes}
    spec = {"suite": suite, "questions": here / "questions.jsonl", "model": "m", "asks_once": True,
            "url": f"http://127.0.0.1:{server.server_address[1]}", "tokenizer": here / "tokenizer",
            "trust_remote_code": False, "concurrency": concurrency, "max_length": 1000}
    spec = {key: str(value) if isinstance(value, Path) else value for key, value in spec.items()}
    client = EvalClient(spec, questions, NullProgress(), len(questions))
    rows = client.ask(range(len(questions)))
    return {"rows": rows, "asked": list(asked), "most": in_flight[1]}


markers = {"start": "<think>", "end": "</think>"}
found = {"thinks": ask(thinking=markers)}
found["does not"] = ask(chat_template_kwargs={"enable_thinking": False})
found["to the end"] = ask(thinking=markers, max_tokens="model", samples=1)
print("RESULT " + json.dumps(found))
"""

SERVED = r"""
import json
import shutil
import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from lm_eval.evaluator import evaluate

from eval_gates.suites import rouge
from eval_gates.suites.fixed_task import task_of
from eval_gates.suites.generation import task_config
from eval_gates.suites.json_lines import write_rows
from pipeline.core.events import NullProgress
from pipeline.workers.evaluate import EvalClient, client

here, url, model, served_name = Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5]
tokenizer = here / "tokenizer"
shutil.copytree(model, tokenizer, ignore=shutil.ignore_patterns("*.safetensors"))
# Worked turns, after which the small model ends its thoughts, too.
turns = "".join(
    f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n<think>\n{thought}\n</think>\n\n"
    f"{said}<|im_end|>\n"
    for asked, thought, said in (
        ("What is the capital of France?", "France. Its capital is Paris.", "Paris."),
        ("What is two plus two?", "Two plus two. That is four.", "Four."),
        ("What colour is the sky?", "The sky. It is blue.", "Blue."),
        ("What do cows eat?", "Cows. They eat grass.", "Grass."),
    )
)
(tokenizer / "chat_template.jinja").write_text(
    "{{ '" + turns + "' }}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n<think>\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '\n</think>\n\n' }}{% endif %}"
)
words = ("a horse eats hay", "the sun is hot", "rain is wet", "a fish can swim")
questions = [{"id": f"d/{n}", "document": text, "references": [text]}
             for n, text in enumerate(words)]
write_rows(here / "questions.jsonl", questions)


def generated():
    # Tokens that the server has generated since it started.
    with urllib.request.urlopen(url + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines
               if line.startswith("vllm:generation_tokens_total"))


def spec_of(folder, **changes):
    suite = {"kind": "rouge", "prompt_format": "chat", "max_tokens": 64, **changes}
    return {"suite": suite, "questions": str(here / "questions.jsonl"), "model": served_name,
            "asks_once": True, "url": url, "tokenizer": str(folder), "trust_remote_code": False,
            "concurrency": 8, "max_length": 4096}


def ask(**changes):
    asker = EvalClient(spec_of(tokenizer, **changes), questions, NullProgress(), len(questions))
    before = generated()
    rows = asker.ask(range(len(questions)))
    return {"rows": rows, "generated": generated() - before}


drawn = {"samples": 2, "sampling": {"temperature": 0.5}}
markers = {"start": "<think>", "end": "</think>"}
found = {
    "on": ask(thinking=markers, **drawn),
    "kept": ask(thinking={**markers, "keep": True}, **drawn),
    "off": ask(chat_template_kwargs={"enable_thinking": False}),
    "cut": ask(thinking=markers, max_tokens=2),
}
# The chat endpoint, which has the served model's own template.
task = task_of(
    task_config(rouge.RougeTask(prompt_format="chat", max_tokens=24), "{{document}}", []),
    questions,
    chat_of=lambda row: {"messages": [{"role": "user", "content": row["document"]}]},
)
before = generated()
results = evaluate(lm=client(spec_of(model), lambda count: None, NullProgress()),
                   task_dict={"chat": task}, log_samples=True, bootstrap_iters=0)
(samples,) = results["samples"].values()
texts = [sample["resps"][0][0] for sample in samples]
found["chat"] = {"texts": [str(text) for text in texts], "generated": generated() - before,
                 "tokens": [text.tokens for text in texts],
                 "cut": [text.is_truncated for text in texts]}
print("RESULT " + json.dumps(found))
"""

# The first test may have to build the environments.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_in_evaluate(STAND_IN, tmp_path_factory.mktemp("stand_in"), str(CONCURRENCY))


def test_requests_of_different_seeds_are_in_flight_together(found: dict[str, Any]) -> None:
    asked = found["thinks"]["asked"]
    assert len({request["seed"] for request in asked}) == len(asked) == 4 * 16
    assert found["thinks"]["most"] == CONCURRENCY
    # One after another they would take 13 s.


def test_a_rows_tokens_and_unfinished_answers_are_its_samples(found: dict[str, Any]) -> None:
    rows = found["thinks"]["rows"]
    assert [row["id"] for row in rows] == [f"d/{n}" for n in range(4)]
    answers = [text for row in rows for text in row["answer"]]
    assert set(answers) == {"one. Two.", ""}
    tokens = {len("a short thought</think> one. Two."), len("a thought")}
    assert {count for row in rows for count in row["tokens"]} == tokens
    for row in rows:
        unfinished = row["answer"].count("")
        assert row["truncated"] == row["unclosed"] == unfinished
        assert len(row["tokens"]) == 16


def test_the_templates_arguments_are_used(found: dict[str, Any]) -> None:
    thinks, does_not = found["thinks"]["asked"], found["does not"]["asked"]
    assert len(thinks[0]["prompt"]) > len(does_not[0]["prompt"])
    assert all("stop" not in request for request in thinks)
    assert all(request["stop"] == ["\n\n"] for request in does_not)
    # Without thoughts to remove, the text is as it came.
    texts = {text for row in found["does not"]["rows"] for text in row["answer"]}
    assert "a short thought</think> one. Two." in texts


def test_the_cap_of_the_model_is_what_its_prompt_leaves(found: dict[str, Any]) -> None:
    for request in found["to the end"]["asked"]:
        assert request["max_tokens"] == 999 - len(request["prompt"])


# --- the real server ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(
    server: Server, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("served")
    return run_in_evaluate(SERVED, folder, server.url, str(demo_model), SERVED_NAME)


@pytest.mark.parametrize("name", ["on", "kept", "off", "cut"])
def test_a_rows_tokens_are_those_that_the_server_counts(served: dict[str, Any], name: str) -> None:
    rows = served[name]["rows"]
    assert sum(count for row in rows for count in row["tokens"]) == served[name]["generated"] > 0


def test_thoughts_are_removed_before_scoring(served: dict[str, Any]) -> None:
    rows = served["on"]["rows"]
    answers = [text for row in rows for text in row["answer"]]
    assert len(answers) == 8
    assert not any("think>" in text for text in answers)
    assert any(answers), "no thought has an end"
    assert all(row["score"] == 0 for row in rows if row["unclosed"] == 2)


def test_thoughts_may_be_kept(served: dict[str, Any]) -> None:
    kept = [text for row in served["kept"]["rows"] for text in row["answer"]]
    assert any("</think>" in text for text in kept), kept


def test_thoughts_that_are_turned_off_are_not_there(served: dict[str, Any]) -> None:
    rows = served["off"]["rows"]
    assert all(isinstance(row["answer"], str) and row["unclosed"] == 0 for row in rows)
    assert not any("</think>" in row["answer"] for row in rows)


def test_thoughts_that_reach_the_cap_are_cut_and_unclosed(served: dict[str, Any]) -> None:
    for row in served["cut"]["rows"]:
        assert (row["answer"], row["score"]) == ("", 0)
        assert (row["tokens"], row["truncated"], row["unclosed"]) == ([2], 1, 1)


def test_messages_are_asked_at_the_chat_endpoint(served: dict[str, Any]) -> None:
    found = served["chat"]
    assert all(found["texts"])
    assert sum(found["tokens"]) == found["generated"]
    assert [count == 24 for count in found["tokens"]] == found["cut"]
