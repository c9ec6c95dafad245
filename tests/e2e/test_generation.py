"""Generated answers on the real server: texts of every way of asking, thoughts and tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from run_in_evaluate import run_in_evaluate

from pipeline.serving.served_model import SERVED_NAME
from pipeline.serving.server import Server

SCRIPT = r"""
import json
import shutil
import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from eval_gates.rows import Question
from eval_gates.suites.json_lines import write_rows
from prepare.events import NullProgress
from eval_gates.evaluate_worker import OpenSuite, open_client

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
questions = [
    Question(f"d/{n}", text, data={"title": "", "document": text, "references": [text]})
    for n, text in enumerate(words)
]
write_rows(here / "questions.jsonl", [each.to_row() for each in questions])


def generated():
    # Tokens that the server has generated since it started.
    with urllib.request.urlopen(url + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines
               if line.startswith("vllm:generation_tokens_total"))


def ask(folder=tokenizer, by_chat=False, **changes):
    suite = {"kind": "rouge", "prompt_format": "chat", "max_tokens": 64, **changes}
    spec = {"suite": suite, "model": served_name, "asks_once": True, "url": url,
            "tokenizer": str(folder), "trust_remote_code": False, "concurrency": 8,
            "max_length": 4096, "by_chat": by_chat}
    opened = OpenSuite(suite, here / "questions.jsonl")
    heard = []
    client = open_client(spec, opened, heard.append, NullProgress())
    asked = opened.render(range(len(words)), client.render)
    before = generated()
    scored = opened.score(range(len(words)), asked, client.ask(asked), NullProgress())
    rows = [each.to_row() for each in scored]
    found = {"rows": rows, "generated": generated() - before, "requests": client.counts["requests"],
             "heard": sum(heard)}
    if not by_chat:
        found["prompts"] = [client.shown(each) for each in asked]
    return found


def lm_evals(prompts):
    lm = LocalCompletionsAPI(
        model=served_name, base_url=url + "/v1/completions", num_concurrent=8, max_length=4096,
        tokenizer_backend="huggingface", tokenizer=str(model), timeout=600,
    )
    settings = {"until": [], "max_gen_toks": 24, "do_sample": False, "temperature": 0.0}
    return lm.generate_until([
        Instance(request_type="generate_until", doc={}, idx=0, metadata=("t", n, 1),
                 arguments=(prompt, settings))
        for n, prompt in enumerate(prompts)
    ])


drawn = {"samples": 2, "sampling": {"temperature": 0.5}}
markers = {"start": "<think>", "end": "</think>"}
found = {
    "on": ask(thinking=markers, **drawn),
    "kept": ask(thinking={**markers, "keep": True}, **drawn),
    "off": ask(chat_template_kwargs={"enable_thinking": False}),
    "cut": ask(thinking=markers, max_tokens=2),
    # The chat endpoint has the served model's own template.
    "completions": ask(model, max_tokens=24),
    "chat": ask(model, by_chat=True, max_tokens=24),
}
found["lm_eval"] = lm_evals(found["completions"]["prompts"])
print("RESULT " + json.dumps(found))
"""

# The first test may have to build the environments.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def served(
    server: Server, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("served")
    words = (server.url, str(demo_model), SERVED_NAME)
    return run_in_evaluate(SCRIPT, folder, *words, seconds=1200)


@pytest.mark.parametrize("name", ["on", "kept", "off", "cut", "completions", "chat"])
def test_requests_and_tokens_are_those_that_the_server_counts(
    served: dict[str, Any], name: str
) -> None:
    rows, found = served[name]["rows"], served[name]
    assert [row["id"] for row in rows] == [f"d/{n}" for n in range(4)]
    assert sum(count for row in rows for count in row["tokens"]) == found["generated"] > 0
    assert found["heard"] == 4
    assert found["requests"] == sum(len(row["tokens"]) for row in rows)


def test_every_way_of_asking_gives_the_same_texts(served: dict[str, Any]) -> None:
    texts = [row["answer"] for row in served["completions"]["rows"]]
    assert texts == served["lm_eval"]
    assert all(texts)
    assert len(set(texts)) == len(texts)
    for key in ("answer", "tokens", "truncated", "score"):
        chat = [row[key] for row in served["chat"]["rows"]]
        assert chat == [row[key] for row in served["completions"]["rows"]]


def test_an_answer_of_the_longest_length_is_truncated(served: dict[str, Any]) -> None:
    for row in served["completions"]["rows"]:
        assert row["truncated"] == int(row["tokens"] == [24])


def test_thoughts_are_removed_unless_they_are_kept(served: dict[str, Any]) -> None:
    answers, kept = (
        [text for row in served[name]["rows"] for text in row["answer"]] for name in ("on", "kept")
    )
    assert len(answers) == 8
    assert any(answers), "no thought has an end"
    for answer, whole in zip(answers, kept, strict=True):  # of the same seeds
        after = whole.partition("</think>")[2]
        said = re.sub(r"(?s)<think>.*?(</think>|\Z)", "", after).lstrip()
        assert answer == said.partition("\n\n")[0], whole  # the suite's stop string
    assert all(row["score"] == 0 for row in served["on"]["rows"] if row["unclosed"] == 2)


def test_thoughts_that_are_turned_off_are_not_there(served: dict[str, Any]) -> None:
    rows = served["off"]["rows"]
    assert all(isinstance(row["answer"], str) and row["unclosed"] == 0 for row in rows)
    assert not any("</think>" in row["answer"] for row in rows)


def test_thoughts_that_reach_the_cap_are_cut_and_unclosed(served: dict[str, Any]) -> None:
    for row in served["cut"]["rows"]:
        assert (row["answer"], row["score"]) == ("", 0)
        assert (row["tokens"], row["truncated"], row["unclosed"]) == ([2], 1, 1)
