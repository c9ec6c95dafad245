"""Prompts of recorded answers against those of now, before anything costly is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from free_port import free_port
from http_stand_in import HttpStandIn, SilentHandler
from listener import Listener
from word_tokenizer import WordTokenizer

from eval_gates import evaluate_worker, first_rows_worker
from eval_gates.ask import UnansweredError
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.rows import Answer, digest
from eval_gates.server_tokens import check_server_template
from eval_gates.suites.json_lines import write_rows
from prepare.errors import StageError

TASK = {"kind": "structured", "prompt_format": "chat", "chat_template_kwargs": {}}
WORDS: dict[str, int] = {"</s>": 0}


class Templated(WordTokenizer):
    """With a chat template that begins with some word."""

    def __init__(self, start: str = "chat:") -> None:
        self.ids = WORDS  # one vocabulary, several templates
        self.start = start

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return " ".join([self.start, *(each["content"] for each in messages)])


def compare(folder: Path, monkeypatch: pytest.MonkeyPatch, now: str) -> None:
    """Compare the prompts of three recorded answers with those of `now`."""
    tokenizer = Tokenizer(Templated(), {})
    monkeypatch.setattr(Tokenizer, "load", lambda *given, **more: tokenizer)
    (folder / "recorded").mkdir()

    def lay_out(last: str) -> None:
        texts = ["Say 0.", "Say 1.", last, "Say 3."]
        rows = [{"id": f"q/{n}", "prompt": text, "schema": {}} for n, text in enumerate(texts)]
        write_rows(folder / "questions.jsonl", rows)

    lay_out("Say 2.")
    suite = evaluate_worker.OpenSuite(TASK, folder / "questions.jsonl")
    client = evaluate_worker.Client("http://x", "m", {}, tokenizer=tokenizer)
    then = suite.render(range(3), evaluate_worker.template_of(client))
    answers = [Answer(each.id, digest(each), 1.0).to_row() for each in then]
    write_rows(folder / "recorded" / "answers.jsonl", answers)
    lay_out(now)
    asked = {
        "name": "json",
        "suite": TASK,
        "questions": str(folder / "questions.jsonl"),
        "recorded": str(folder / "recorded" / "answers.jsonl"),
        "by_chat": False,
        "tokenizer": "folder",
        "trust_remote_code": False,
        "url": "http://127.0.0.1:9",
        "model": "m",
    }
    first_rows_worker.run({"recorded_prompts": [asked]}, Listener(), folder)


def test_the_same_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(tmp_path, monkeypatch, "Say 2.")


def test_the_first_prompt_that_differs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StageError, match="question q/2"):
        compare(tmp_path, monkeypatch, "Sing 2.")


class RenderingStandIn(HttpStandIn):
    """An endpoint that renders conversations by its own template."""

    def __init__(self, tokenizer: Templated, status: int = 200) -> None:
        class Handler(SilentHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                text = tokenizer.apply_chat_template(asked["messages"])
                self.send(status, json.dumps({"tokens": tokenizer(text).input_ids}).encode())

        super().__init__(Handler)


def compare_template(url: str) -> list[str]:
    """Return what is noted of the endpoint's template."""
    notes: list[str] = []
    spec = {"url": url, "model": "m"}
    check_server_template(spec, Tokenizer(Templated(), {}), notes.append)
    return notes


@pytest.mark.parametrize(("start", "status", "notes"), [("chat:", 200, 0), ("other:", 404, 1)])
def test_an_endpoint_with_the_same_template_or_that_does_not_tell(
    start: str, status: int, notes: int
) -> None:
    with RenderingStandIn(Templated(start), status) as server:
        assert len(compare_template(server.url)) == notes


def test_an_endpoint_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval_gates.ask.TRIES", 1)
    with pytest.raises(UnansweredError):
        compare_template(f"http://127.0.0.1:{free_port()}")


def test_an_endpoint_with_another_template_is_refused_with_the_first_token() -> None:
    with (
        RenderingStandIn(Templated("other:")) as server,
        pytest.raises(StageError, match="number 0"),
    ):
        compare_template(server.url)
