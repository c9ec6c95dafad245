"""A model server whose model is a rule: it writes, and tells what it reads, as vLLM does.

Tokens are code points. After each token the model's first choice is the next code point; an arm
that `forgets` has another first choice after tokens that the number divides.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from http_stand_in import HttpStandIn, SilentHandler

SURE, UNSURE = -0.1, -2.5


class ReadingStandIn(HttpStandIn):
    """The server.

    Attributes:
        forgets: after every token that this divides, another one is the first choice.
        lost: nats that each token of a prompt has less than the rule says.
        unsure: log-probability of a token that is not its first choice.
        value: log-probability of every token of a prompt instead.
        mutters: it writes other tokens than it chooses when it reads.
        text: written after any prompt; None for the tokens' own.
        template: text before the messages that it renders.
        dies_beyond: tokens of a prompt beyond which it answers 500 for its log-probabilities.
        refuses: text of a conversation that its chat template does not render.
        can_read: whether it gives log-probabilities of a prompt.
        status: of every answer.
        paths: that it serves.
        requests: path and body of all requests, in order.
        headers: of all requests, in order.
    """

    def __init__(self, **given: Any) -> None:
        self.forgets: int | None = None
        self.lost = 0.0
        self.unsure = UNSURE
        self.value: float | None = None
        self.mutters = False
        self.text: str | None = None
        self.template = ""
        self.refuses = ""
        self.can_read = True
        self.dies_beyond: int | None = None
        self.status = 200
        self.paths = ["/tokenize", "/v1/completions"]
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        vars(self).update(given)
        stand_in = self

        class Handler(_Handler):
            server_told = stand_in

        super().__init__(Handler)

    def answer(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        """The body of the answer to a request."""
        if path == "/tokenize":
            text = asked.get("prompt") or self.template + json.dumps(
                [asked["messages"], asked.get("tools")]
            )
            return {"tokens": [ord(letter) for letter in text], "token_strs": list(text)}
        prompt = asked["prompt"]
        if "prompt_logprobs" in asked:
            return {"choices": [{"text": "!", "prompt_logprobs": self.read(prompt)}]}
        written = self.write(prompt, asked["max_tokens"]) if isinstance(prompt, list) else []
        text = "".join(map(chr, written)) if self.text is None else self.text
        return {"choices": [{"text": text or " Paris", "token_ids": written}]}

    def write(self, prompt: Sequence[int], tokens: int) -> list[int]:
        found = list(prompt)
        for _ in range(tokens):
            found.append(self.first_after(found[-1]) + 2 * self.mutters)
        return found[len(prompt) :]

    def read(self, prompt: Sequence[int]) -> list[Any]:
        places: list[Any] = [None]
        for before, token in pairwise(prompt):
            first = self.first_after(before)
            place = {
                first: SURE,
                first + 1000: UNSURE,
                token: SURE if token == first else self.unsure,
            }
            value = place[token] - self.lost if self.value is None else self.value
            own = {"logprob": value, "rank": 1, "decoded_token": chr(token)}
            places.append(
                {str(key): {"logprob": each, "rank": 1} for key, each in place.items()}
                | {str(token): own}
            )
        return places

    def first_after(self, token: int) -> int:
        return token + (7 if self.forgets and token % self.forgets == 0 else 1)


class _Handler(SilentHandler):
    server_told: ReadingStandIn

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        told = self.server_told
        told.requests.append((self.path, asked))
        told.headers.append(dict(self.headers))
        status = told.status if self.path in told.paths else 404
        if not told.can_read and ("prompt_logprobs" in asked or self.path == "/tokenize"):
            status = 404
        if told.refuses and told.refuses in json.dumps(asked.get("messages")):
            self.send(400, b'{"error": "roles must alternate"}')
            return
        too_long = (
            told.dies_beyond is not None and len(asked.get("prompt") or []) > told.dies_beyond
        )
        status = 500 if too_long and "prompt_logprobs" in asked else status
        body = told.answer(self.path, asked) if status == 200 else {"error": "EngineCore is dead"}
        self.send(status, json.dumps(body).encode())
