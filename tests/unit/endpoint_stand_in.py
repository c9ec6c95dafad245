"""A real HTTP server that behaves as an OpenAI-compatible endpoint, with any capability left out.

    with EndpointStandIn() as complete, EndpointStandIn(lacks={"logprobs"}) as poor: ...

What can be left out: `completions` (it answers chat alone), `chat` and `tools` (400), `token_ids`
(400), `logprobs` (null in every answer, as of a server that ignores the request for them), `chosen`
(400 to the request for chosen tokens), `scored` (400 to `echo`), `counts` (no token counts in
answers), `usage` (a stream without its token counts).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from http_stand_in import HttpStandIn, SilentHandler

Body = dict[str, Any]


class EndpointStandIn(HttpStandIn):
    """The server. `requests` are the paths and bodies that it was sent."""

    def __init__(
        self, lacks: Collection[str] = (), model: str = "m", status: int = 200, length: int = 1024
    ) -> None:
        self.lacks, self.model, self.status = set(lacks), model, status
        self.length = length
        self.requests: list[tuple[str, Body]] = []
        stand_in = self

        class Handler(_Handler):
            endpoint = stand_in

        super().__init__(Handler)

    def answer(self, path: str, asked: Body) -> tuple[int, Body | list[Body]]:
        """Status and body of an answer; a list where it is a stream."""
        chat, prompt = path == "/v1/chat/completions", asked.get("prompt")
        if not chat and "completions" in self.lacks:
            return 404, {"detail": "Not Found"}
        if self.status != 200:
            return self.status, {"error": "EngineCore is dead"}
        if chat and ("chat" in self.lacks or ("tools" in self.lacks and "tools" in asked)):
            return 400, {"error": "no chat, or no parser of tool calls"}
        if chat:
            message = {"role": "assistant", "content": "Yes"}
            return 200, {"choices": [{"message": message}], "usage": {"completion_tokens": 1}}
        unsupported = {
            "token_ids": isinstance(prompt, list),
            "chosen": "logprob_token_ids" in asked,
            "scored": bool(asked.get("echo")),
        }
        for capability, is_asked in unsupported.items():
            if is_asked and capability in self.lacks:
                return 400, {"error": f"{capability} is not supported"}
        if asked.get("stream"):
            tokens = asked["max_tokens"]
            parts: list[Body] = [{"choices": [{"index": 0, "text": " a"}]}] * tokens
            usage: Body = {"choices": [], "usage": {"completion_tokens": tokens}}
            return 200, parts if "usage" in self.lacks else [*parts, usage]
        scored = None if "logprobs" in self.lacks else log_probabilities(asked)
        counts: Body = {} if "counts" in self.lacks else {"usage": {"completion_tokens": 1}}
        return 200, {"choices": [{"index": 0, "text": " a", "logprobs": scored}], **counts}


def log_probabilities(asked: Body) -> Body | None:
    """As vLLM gives them: of the prompt's tokens with `echo`, of the one that was chosen."""
    if asked.get("logprobs") is None:
        return None
    if asked.get("echo"):
        count = len(asked["prompt"])
        return {
            "token_logprobs": [None, *[-1.5] * count],
            "top_logprobs": [None, *[{"a": -1.5}] * count],
        }
    tops = {f"token_id:{token}": -1.5 for token in asked.get("logprob_token_ids", ())}
    return {"token_logprobs": [-1.5], "top_logprobs": [tops]}


class _Handler(SilentHandler):
    endpoint: EndpointStandIn

    def do_GET(self) -> None:
        found = {"data": [{"id": self.endpoint.model, "max_model_len": self.endpoint.length}]}
        self.send(200, json.dumps(found).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.endpoint.requests.append((self.path, asked))
        status, body = self.endpoint.answer(self.path, asked)
        if isinstance(body, list):
            self.send(200, "".join(f"data: {json.dumps(each)}\n\n" for each in body).encode())
        else:
            self.send(status, json.dumps(body).encode())
