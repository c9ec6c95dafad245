"""Capabilities of an external endpoint, found with a few one-token requests.

The requests have the form of those that suites and the load generator send. An unsuitable endpoint
is rejected in seconds instead of after an hour.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from eval_gates.ask import choice_body, scored_body
from eval_gates.chat_form import PATH
from eval_gates.replies import read_chosen, read_completion, read_scored
from pipeline.serving.openai_endpoint import OpenAIEndpoint

if TYPE_CHECKING:
    from pipeline.core.bounded_http import HttpResponse

PROBE_TIMEOUT_S = 30.0
MAX_REASON_CHARACTERS = 300  # of an endpoint's error message
TOKENS = (1, 2, 3, 4)  # valid in every vocabulary
STREAMED_TOKENS = 4
CHAT = f"/v1/{PATH}"
MISSING_PATH_STATUSES = (404, 405, 501)


class Capability(StrEnum):
    """Capability of an endpoint, as text for messages."""

    COMPLETIONS = "text completions (POST /v1/completions)"
    TOKEN_IDS = "prompts of token ids"  # noqa: S105 - not a secret
    CHOSEN = "log-probabilities of chosen tokens (logprob_token_ids)"
    SCORED = "log-probabilities of the prompt's tokens (echo with logprobs)"
    CHAT = "chat (POST /v1/chat/completions)"
    TOOLS = "tool calls (tools of POST /v1/chat/completions)"
    TOKENS = "token counts of an answer (usage.completion_tokens)"
    USAGE = "token counts of a stream (stream_options.include_usage)"


Missing = dict[Capability, str]
"""Capabilities that an endpoint lacks, each with the reason."""


def probe(endpoint: OpenAIEndpoint, wanted: Collection[Capability]) -> Missing:
    """Return which of these capabilities the endpoint lacks.

    Text completions are tried first; without them nothing else is tried.
    """
    missing: Missing = {}
    for capability, try_it in PROBES.items():
        is_first = capability is Capability.COMPLETIONS
        if is_first or capability in wanted:
            reason = try_it(endpoint)
            if reason:
                missing[capability] = reason
            if reason and is_first:
                break
    return missing


def try_completions(endpoint: OpenAIEndpoint) -> str:
    """Return why a text completion fails; "" if it works."""
    answer, reason = complete_text(endpoint)
    if answer is not None and answer.status in MISSING_PATH_STATUSES and not try_chat(endpoint):
        return "it serves only chat (POST /v1/chat/completions)"
    return reason or find_wrong_text(answer)


def try_token_ids(endpoint: OpenAIEndpoint) -> str:
    """Return why a completion of token ids with the suites' options fails; "" if it works."""
    body = {
        "model": endpoint.model,
        "prompt": list(TOKENS),
        "max_tokens": 1,
        "temperature": 0,
        "seed": 1,
        "stop": ["\n\n", "</s>", "Question:", "###"],
    }
    answer, reason = post(endpoint, body)
    return reason or find_wrong_text(answer)


def try_tokens(endpoint: OpenAIEndpoint) -> str:
    """Return why the tokens of an answer cannot be counted; "" if they can."""
    answer, reason = complete_text(endpoint)
    if reason:
        return reason
    return why_unread(lambda: read_completion(read_json(answer)))


def try_chosen(endpoint: OpenAIEndpoint) -> str:
    """Return why log-probabilities of chosen tokens are missing; "" if they work."""
    context, chosen = TOKENS[:2], TOKENS[2:]
    answer, reason = post(endpoint, choice_body(endpoint.model, context, chosen))
    return reason or why_unread(lambda: read_chosen(read_json(answer), chosen))


def try_scored(endpoint: OpenAIEndpoint) -> str:
    """Return why log-probabilities of a prompt are missing; "" if they work."""
    answer, reason = post(endpoint, scored_body(endpoint.model, TOKENS))
    return reason or why_unread(lambda: read_scored(read_json(answer), len(TOKENS), 1))


def why_unread(read: Callable[[], Any]) -> str:
    """Return why an answer cannot be read; "" if it can."""
    try:
        read()
    except ValueError as error:
        return str(error)
    return ""


def try_chat(endpoint: OpenAIEndpoint, **more: Any) -> str:
    """Return why a chat request fails; "" if it works."""
    asked = {"role": "user", "content": "Is Paris in France?"}
    body = {"model": endpoint.model, "messages": [asked], "max_tokens": 1, **more}
    return post(endpoint, body, CHAT)[1]


def try_tools(endpoint: OpenAIEndpoint) -> str:
    """Return why a chat request with tools fails; "" if it works."""
    parameters = {"type": "object", "properties": {}}
    function = {"name": "now", "description": "Says the time.", "parameters": parameters}
    return try_chat(endpoint, tools=[{"type": "function", "function": function}])


def try_usage(endpoint: OpenAIEndpoint) -> str:
    """Return why the tokens of a stream cannot be counted; "" if they can."""
    body = {
        "model": endpoint.model,
        "prompt": "The capital of France is",
        "max_tokens": STREAMED_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer, reason = post(endpoint, body)
    if answer is None or reason:
        return reason
    # vLLM's load generator reads the counts from the part without choices.
    counts = [
        part["usage"].get("completion_tokens")
        for part in read_stream(answer.content)
        if not part.get("choices") and isinstance(part.get("usage"), dict)
    ]
    if not counts:
        return "its stream has no token counts"
    if counts[-1] != STREAMED_TOKENS:
        return f"it counts {str(counts[-1])[:40]} tokens instead of {STREAMED_TOKENS}"
    return ""


PROBES: dict[Capability, Callable[[OpenAIEndpoint], str]] = {
    Capability.COMPLETIONS: try_completions,
    Capability.TOKEN_IDS: try_token_ids,
    Capability.TOKENS: try_tokens,
    Capability.CHOSEN: try_chosen,
    Capability.SCORED: try_scored,
    Capability.CHAT: try_chat,
    Capability.TOOLS: try_tools,
    Capability.USAGE: try_usage,
}


def complete_text(endpoint: OpenAIEndpoint) -> tuple[HttpResponse | None, str]:
    """Request one token after a text; return as :func:`post`."""
    body = {"model": endpoint.model, "prompt": "The capital of France is", "max_tokens": 1}
    return post(endpoint, body)


def post(
    endpoint: OpenAIEndpoint, body: dict[str, Any], path: str = "/v1/completions"
) -> tuple[HttpResponse | None, str]:
    """Return the response, and an error; "" if the status is 200."""
    import httpx

    try:
        answer = endpoint.request("POST", path, seconds=PROBE_TIMEOUT_S, json=body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return None, f"it does not respond: {error}"
    if answer.status != 200:
        return answer, f"it responded with {answer.status}: {answer.text[:MAX_REASON_CHARACTERS]}"
    return answer, ""


def read_json(answer: HttpResponse | None) -> Any:
    """Return the response's JSON; None without any."""
    try:
        return answer.json() if answer is not None else None
    except ValueError:
        return None


def read_stream(content: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects of an event stream; skip other data."""
    found = []
    for line in content.decode(errors="replace").splitlines():
        try:
            part = json.loads(line.removeprefix("data:"))
        except ValueError:
            continue
        if isinstance(part, dict):
            found.append(part)
    return found


def find_wrong_text(answer: HttpResponse | None) -> str:
    """Return what is wrong with a response that must have one text; "" if nothing is."""
    try:
        choices = read_json(answer)["choices"]
        is_text = len(choices) == 1 and isinstance(choices[0]["text"], str)
    except (LookupError, TypeError):
        is_text = False
    return "" if is_text else "its response is not one text"
