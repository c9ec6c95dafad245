"""A real HTTP server that answers /v1/completions as vLLM's OpenAI server does, as it is told to.

With `echo` and `logprobs` the answer holds the prompt's tokens (here its words) and one more,
the first without a log-probability; without them, a short text.
"""

from __future__ import annotations

import json
from typing import Any

from http_stand_in import HttpStandIn, SilentHandler


class CompletionsStandIn(HttpStandIn):
    """The server.

    Attributes:
        requests: bodies of all requests, in order.
        logprob: of every token of the prompt after the first.
        odd_logprobs: other values by the token's position.
        text: what it generates.
        status: answered to every request; with 200 as told above.
        scores: whether it answers requests that ask it to score a prompt.
        headers: of all requests, in order.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.logprob = -2.0
        self.odd_logprobs: dict[int, float | None] = {}
        self.text = " Paris, on the Seine."
        self.status = 200
        self.scores = True
        self.headers: list[dict[str, str]] = []
        stand_in = self

        class Handler(_Handler):
            server_told = stand_in

        super().__init__(Handler)

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The body of the answer to a request."""
        if not asked.get("echo"):
            return {"choices": [{"index": 0, "text": self.text, "logprobs": None}]}
        words = asked["prompt"].split(" ")
        values: list[float | None] = [None, *[self.logprob] * (len(words) - 1)]
        for position, value in self.odd_logprobs.items():
            values[position] = value
        # The generated token stands behind the prompt's; its value says nothing of the passage.
        scored = {"tokens": [*words, "!"], "token_logprobs": [*values, -123.0]}
        return {"choices": [{"index": 0, "text": asked["prompt"] + "!", "logprobs": scored}]}


class _Handler(SilentHandler):
    server_told: CompletionsStandIn

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server_told.requests.append(asked)
        self.server_told.headers.append(dict(self.headers))
        known = self.path == "/v1/completions"
        status = self.server_told.status if known else 404
        if asked.get("echo") and not self.server_told.scores:
            status = 400
        body = self.server_told.answer(asked) if status == 200 else {"error": "EngineCore is dead"}
        self.send(status, json.dumps(body).encode())
