"""Whether a server reads and writes text as our tokenizer does, before it is asked anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_stand_in import HttpStandIn, SilentHandler
from word_tokenizer import WordTokenizer

from eval_gates import ask
from eval_gates.model_tokenizer import Tokenizer
from eval_gates.server_tokens import check_server_tokens
from prepare.errors import StageError

GIVEN = WordTokenizer()


class TokenizingStandIn(HttpStandIn):
    """A server with the words' tokenizer; `spoil` changes its ids, `write` its text."""

    def __init__(self, **given: Any) -> None:
        self.spoil = lambda text, ids: ids
        self.write = lambda text: text
        self.status = 200
        self.has_text = True
        self.paths: list[str] = []
        vars(self).update(given)
        told = self

        class Handler(SilentHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told.paths.append(self.path)
                if self.path == "/tokenize":
                    text = asked["prompt"]
                    answer = {"tokens": told.spoil(text, GIVEN(text).input_ids)}
                else:
                    answer = {"prompt": told.write(GIVEN.decode(asked["tokens"]))}
                is_known = told.has_text or self.path == "/tokenize"
                self.send(told.status if is_known else 404, json.dumps(answer).encode())

        super().__init__(Handler)


def check(server: TokenizingStandIn, notes: list[str] | None = None) -> None:
    with server:
        spec = {"url": server.url, "model": "m", "concurrency": 2, "tokenizer": "folder"}
        check_server_tokens(spec, Tokenizer(GIVEN, {}), (notes or []).append)


def test_a_server_that_reads_alike_is_compared_by_few_requests() -> None:
    server = TokenizingStandIn()
    check(server)
    assert set(server.paths) == {"/tokenize", "/detokenize"}
    assert len(server.paths) <= 12


def is_code(text: str) -> bool:
    return "def " in text


def is_foreign(text: str) -> bool:
    return "мир" in text


def is_marked(text: str) -> bool:
    return "</s>" in text


def in_the_middle(ids: list[int]) -> list[int]:
    middle = len(ids) // 2
    return [*ids[:middle], ids[middle] + 1, *ids[middle + 1 :]]


@pytest.mark.parametrize("where", [is_code, is_foreign])
def test_a_server_that_reads_other_ids(where: Any) -> None:
    spoilt = lambda text, ids: in_the_middle(ids) if where(text) else ids  # noqa: E731
    with pytest.raises(StageError) as caught:
        check(TokenizingStandIn(spoil=spoilt))
    assert "folder/tokenizer_config.json, key tokenizer_class" in caught.value.where


def test_a_server_that_splits_special_tokens() -> None:
    spoilt = lambda text, ids: [n for n in ids if n] if is_marked(text) else ids  # noqa: E731
    with pytest.raises(StageError, match="special tokens"):
        check(TokenizingStandIn(spoil=spoilt))


def test_a_server_that_writes_text_without_its_spaces() -> None:
    with pytest.raises(StageError, match="turns"):
        check(TokenizingStandIn(write=lambda text: text.replace(" ", "Ġ")))


@pytest.mark.parametrize(
    "given",
    [
        {"status": 404},
        {"status": 500},
        {"has_text": False},
        {"spoil": lambda text, ids: []},  # llama.cpp reads another key of the request
    ],
)
def test_an_endpoint_that_does_not_tell_is_not_compared(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(seconds: float) -> None:
        pass

    monkeypatch.setattr(ask.asyncio, "sleep", sleep)
    notes = [""]
    check(TokenizingStandIn(**given), notes)
    assert "not compared" in notes[-1]
