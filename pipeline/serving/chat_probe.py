"""The form of chat requests that two external endpoints accept, found with short requests.

Servers differ: OpenAI's rejects unknown fields and, for newer models, `max_tokens`; Ollama ignores
unknown fields, `max_completion_tokens` included; TensorRT-LLM's rejects unknown fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from eval_gates.chat_form import PATH, ChatForm
from eval_gates.replies import read_chat
from pipeline.serving.endpoint_probe import (
    Capability,
    Missing,
    post,
    read_json,
    try_tools,
    try_usage,
)
from pipeline.serving.openai_endpoint import OpenAIEndpoint

FORMS = (
    ChatForm(length_key="max_tokens", extended=True),
    ChatForm(length_key="max_tokens", extended=False),
    ChatForm(length_key="max_completion_tokens", extended=True),
    ChatForm(length_key="max_completion_tokens", extended=False),
)
MAX_TOKENS = 4
MESSAGES = [{"role": "user", "content": "Write the numbers from 1 to 50."}]
SETTINGS = {"top_k": 0, "min_p": 0.0, "stop": ["\n\n", "</s>", "Question:", "###"]}
UNAVAILABLE: Missing = {Capability.SCORED: "the chat API does not score prompts"}
Try = Callable[[OpenAIEndpoint, ChatForm], str]


def probe_chat(
    endpoints: Sequence[OpenAIEndpoint], wanted: Collection[Capability]
) -> tuple[ChatForm | None, list[Missing]]:
    """Return the form that all endpoints accept, and which capabilities each lacks."""
    form, reasons = _first_common(endpoints, FORMS, try_form)
    missing = [dict(UNAVAILABLE) for _ in endpoints]
    _note(missing, Capability.CHAT, reasons)
    if form is None:
        return None, missing
    # Loads are text completions, however the suites are asked.
    for capability, try_it in ((Capability.TOOLS, try_tools), (Capability.USAGE, try_usage)):
        if capability in wanted:
            _note(missing, capability, [try_it(endpoint) for endpoint in endpoints])
    return form, missing


def try_form(endpoint: OpenAIEndpoint, form: ChatForm) -> str:
    """Return why a generated answer in that form fails; "" if it works."""
    body = form.body(
        endpoint.model,
        {"messages": MESSAGES},
        max_tokens=MAX_TOKENS,
        seed=1,
        settings=SETTINGS,
        template_arguments={},
    )
    answer, reason = post(endpoint, body, f"/v1/{PATH}")
    if reason:
        return reason
    try:
        found = read_chat(read_json(answer))
    except ValueError as error:
        return str(error)
    if found.tokens > MAX_TOKENS:
        return f"it ignores {form.length_key}: {found.tokens} tokens instead of {MAX_TOKENS}"
    return ""


def _first_common(
    endpoints: Sequence[OpenAIEndpoint], forms: Sequence[ChatForm], try_it: Try
) -> tuple[ChatForm | None, list[str]]:
    """Return the first form that all accept, with no reasons; or why each has no such form."""
    tried: list[list[str]] = []
    for form in forms:
        with ThreadPoolExecutor() as threads:
            tried.append(list(threads.map(try_it, endpoints, [form] * len(endpoints))))
        if not any(tried[-1]):
            return form, tried[-1]
    reasons = [
        each[0] if all(each) else "" for each in zip(*tried, strict=True)
    ]  # of the first form, the richest
    other = "it accepts no form of requests that the other endpoint accepts"
    return None, reasons if any(reasons) else [other] * len(endpoints)


def _note(missing: list[Missing], capability: Capability, reasons: Sequence[str]) -> None:
    for found, reason in zip(missing, reasons, strict=True):
        if reason:
            found[capability] = reason
