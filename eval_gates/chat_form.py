"""How the chat API of an endpoint is asked: field names, and sampling that OpenAI's API lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from pipeline.core.record import Record

PATH = "chat/completions"  # after `/v1/`
# A model's generation_config.json may say otherwise, and vLLM would follow it.
PLAIN_SAMPLING = {
    "temperature": 0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}

LengthKey = Literal["max_tokens", "max_completion_tokens"]
_EXTENSIONS = {"repetition_penalty": 1.0, "top_k": 0, "min_p": 0.0}
"""Sampling that OpenAI's API lacks, with the values that change nothing."""


class ChatForm(Record):
    """Fields of chat requests that both endpoints accept."""

    length_key: LengthKey = Field(description="limits the tokens of an answer")
    extended: bool = Field(
        description="repetition_penalty, top_k, min_p and chat_template_kwargs are accepted, which "
        "OpenAI's API lacks"
    )

    @property
    def words(self) -> str:
        """Short form for people."""
        return f"by the chat API ({self.length_key})"

    def body(
        self,
        model: str,
        chat: Mapping[str, Any],
        *,
        max_tokens: int | None,
        seed: int,
        settings: Mapping[str, Any],
        template_arguments: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return a request's body.

        Args:
            chat: messages, and tools or a response format.
            max_tokens: None for what the endpoint allows.
            settings: sampling and stop strings; what the endpoint lacks is at its neutral value.
        """
        given = {"seed": seed, **PLAIN_SAMPLING, **settings}
        if not self.extended:
            given = {key: value for key, value in given.items() if key not in _EXTENSIONS}
        elif template_arguments:
            given["chat_template_kwargs"] = dict(template_arguments)
        length: dict[str, Any] = {} if max_tokens is None else {self.length_key: max_tokens}
        return {"model": model, **chat, **length, **given}


def needs_extensions(sampling: Mapping[str, Any]) -> list[str]:
    """Return the keys of sampling that OpenAI's API lacks and that change something."""
    return [key for key, value in _EXTENSIONS.items() if sampling.get(key, value) != value]
