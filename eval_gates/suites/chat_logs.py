"""Logs of conversations in OpenAI's form: their lines, and what of them an arm's server renders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prepare.errors import EvaluationDataError, StageError

STEM = "conversations"
CARRIED_FILE = Path(__file__).parents[1] / "data" / "conversations.jsonl"
TEXTS = "conversations.jsonl"  # next to the questions; never in a bundle
TOLD = "Summarize the following text in one paragraph.\n\n"
_HINT = "each line needs messages (as of OpenAI's chat API; tools, too) or prompt (a text)"


def read_chat_row(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a line's `messages` and `tools`, or its `prompt`.

    A `document` is a text to summarize.
    """
    messages = row.get("messages")
    prompt = row.get("prompt")
    if isinstance(row.get("document"), str):
        messages = [{"role": "user", "content": TOLD + row["document"]}]
    if isinstance(messages, list) and messages:
        if any(not isinstance(each, dict) or "role" not in each for each in messages):
            raise EvaluationDataError("a message has no role", where=place, hint=_HINT)
        # The model's own last message is the answer.
        asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
        if asked:
            tools = row.get("tools")
            return {"messages": asked, **({"tools": tools} if tools else {})}
    if isinstance(prompt, str) and prompt:
        return {"prompt": prompt}
    raise EvaluationDataError("the line has no conversation", where=place, hint=_HINT)


def tokenized(
    model: str, chat: Mapping[str, Any], form: str, template_arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a request of `/tokenize`, which takes prompts of any length.

    `form` is the suite's `prompt_format`.
    """
    body = {"model": model}
    if "messages" not in chat:
        return {**body, **chat}
    if form != "chat":
        lines = [f"{each['role']}: {each.get('content') or ''}" for each in chat["messages"]]
        return {**body, "prompt": "\n\n".join([*lines, "assistant:"])}
    return {**body, **chat, "chat_template_kwargs": dict(template_arguments)}


def other_rendering(name: str, here: Sequence[int], there: Sequence[int]) -> StageError:
    """Return the error of an arm whose template or tokenizer is not the baseline's."""
    pairs = zip(here, there, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(here), len(there)))
    return StageError(
        f"the arm renders the conversation '{name}' otherwise than the baseline: {len(here)} and "
        f"{len(there)} tokens, the first that differs is number {at}",
        where="tokenizer and chat template of the served model",
        hint="the variant must have the tokenizer and the chat template of its baseline",
    )
