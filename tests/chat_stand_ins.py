"""Real HTTP servers with the request schemas and limits of chat endpoints that cannot run here.

- `OPENAI`: https://platform.openai.com/docs/api-reference/chat/create. At most 20 `top_logprobs`;
  fields that it does not list are an error 400 ("Unrecognized request argument supplied"); newer
  models reject `max_tokens` ("Use 'max_completion_tokens' instead"), and some list 5 tokens.
- `OLLAMA`: https://docs.ollama.com/api/openai-compatibility, and ollama/ollama, openai/openai.go
  (ChatCompletionRequest, CompletionRequest). Unknown fields are ignored, so `max_completion_tokens`
  limits nothing. A prompt of `/v1/completions` is a text. `top_logprobs` is 0 to 20.
- `TRTLLM`: NVIDIA/TensorRT-LLM, tensorrt_llm/serve/openai_protocol.py (ChatCompletionRequest,
  CompletionRequest: `extra="forbid"`, `max_tokens` is an alias of `max_completion_tokens`, prompts
  of token ids; `echo` repeats the text alone). With the TensorRT backend more than one
  log-probability needs `gather_generation_logits`.
- `VLLM`: vllm/entrypoints/openai/chat_completion/protocol.py; unknown fields are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from http_stand_in import HttpStandIn, SilentHandler

Body = dict[str, Any]
Distribution = Mapping[str, float]

PLAIN = frozenset(
    {
        *("model", "frequency_penalty", "presence_penalty", "seed", "stop"),
        *("stream", "stream_options", "temperature", "top_p"),
    }
)
CHAT = PLAIN | {"messages", "logprobs", "top_logprobs", "tools", "tool_choice", "response_format"}
SAMPLING = frozenset({"top_k", "min_p", "repetition_penalty", "chat_template_kwargs"})
LETTERS: Distribution = {"B": 0.6, " A": 0.2, "C": 0.1, "The": 0.06, "D": 0.04}


@dataclass(frozen=True)
class Schema:
    """What a server accepts."""

    fields: frozenset[str]  # of chat requests, that have an effect
    lengths: frozenset[str] = frozenset({"max_tokens", "max_completion_tokens"})
    forbids: bool = True  # unknown fields are an error
    most_logprobs: int = 20
    without_logprobs: str = ""  # the error, where none are given
    completions: frozenset[str] = frozenset()  # fields of text completions; none: no such path
    token_ids: bool = False
    model_card: Body = field(default_factory=dict)


OPENAI = Schema(CHAT)
OPENAI_NEWER = replace(OPENAI, lengths=frozenset({"max_completion_tokens"}), most_logprobs=5)
COMPLETION = PLAIN | {"prompt", "max_tokens"}
OLLAMA = Schema(CHAT, lengths=frozenset({"max_tokens"}), forbids=False, completions=COMPLETION)
TRTLLM = Schema(
    CHAT | SAMPLING,
    completions=COMPLETION | SAMPLING | {"echo", "logprobs", "ignore_eos"},
    token_ids=True,
)
TRTLLM_ENGINE = replace(
    TRTLLM, without_logprobs="`logprobs` must be 1 or `gather_generation_logits` must be `True`"
)
VLLM = Schema(CHAT | SAMPLING, forbids=False, model_card={"max_model_len": 2048})


class ChatStandIn(HttpStandIn):
    """A server of one schema, whose first token has this distribution.

    `requests` are the paths and bodies that it was sent.
    """

    def __init__(self, schema: Schema, distribution: Distribution = LETTERS) -> None:
        self.schema, self.distribution = schema, distribution
        self.requests: list[tuple[str, Body]] = []
        stand_in = self

        class Handler(_Handler):
            server_of = stand_in

        super().__init__(Handler)

    def answer(self, path: str, asked: Body) -> tuple[int, Body | list[Body]]:
        """Status and body of an answer; a list where it is a stream."""
        is_chat, schema = path == "/v1/chat/completions", self.schema
        if not is_chat and not schema.completions:
            return 404, {"error": {"message": "Not Found"}}
        known = schema.fields | schema.lengths if is_chat else schema.completions
        if schema.forbids and (unknown := asked.keys() - known):
            return 400, {"error": {"message": f"Unrecognized request argument: {sorted(unknown)}"}}
        if not is_chat:
            return self._complete(asked)
        wanted = asked.get("top_logprobs", 0) if asked.get("logprobs") else 0
        if wanted > schema.most_logprobs or (wanted and schema.without_logprobs):
            return 400, {"error": {"message": schema.without_logprobs or "top_logprobs: too many"}}
        limit = next((asked[key] for key in schema.lengths if key in asked), 150)
        words = sorted(self.distribution, key=lambda token: -self.distribution[token])
        scored = [{"token": word, "logprob": math.log(self.distribution[word])} for word in words]
        content = [{**scored[0], "top_logprobs": scored[:wanted]}] if wanted else None
        message = {"role": "assistant", "content": words[0] + " 2" * (limit - 1)}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        logprobs = {"logprobs": {"content": content} if content else None}
        usage = {"prompt_tokens": 9, "completion_tokens": limit}
        return 200, {"choices": [{**choice, **logprobs}], "usage": usage}

    def _complete(self, asked: Body) -> tuple[int, Body | list[Body]]:
        prompt = asked["prompt"]
        if asked.get("stream"):
            part: Body = {"choices": [{"index": 0, "text": " a"}]}
            usage: Body = {"choices": [], "usage": {"completion_tokens": asked["max_tokens"]}}
            return 200, [*[part] * asked["max_tokens"], usage]
        if not isinstance(prompt, str) and not self.schema.token_ids:
            return 400, {"error": {"message": "cannot unmarshal array into field prompt"}}
        scored = {"token_logprobs": [-1.5], "top_logprobs": [{"a": -1.5}], "tokens": [" a"]}
        choice = {"index": 0, "text": " a", "finish_reason": "length"}
        logprobs = {"logprobs": scored if asked.get("logprobs") else None}
        return 200, {"choices": [{**choice, **logprobs}], "usage": {"completion_tokens": 1}}


class _Handler(SilentHandler):
    server_of: ChatStandIn

    def do_GET(self) -> None:
        card = {"id": "m", "object": "model", **self.server_of.schema.model_card}
        self.send(200, json.dumps({"object": "list", "data": [card]}).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server_of.requests.append((self.path, asked))
        status, body = self.server_of.answer(self.path, asked)
        if isinstance(body, list):
            self.send(status, "".join(f"data: {json.dumps(each)}\n\n" for each in body).encode())
        else:
            self.send(status, json.dumps(body).encode())
