"""How the chat API of an endpoint is asked: field names, and log-probabilities of choices.

An endpoint lists the most likely first tokens only (OpenAI: at most 20). A choice's value is the
largest log-probability among first tokens whose text, without surrounding whitespace, is the
choice: "A" and " A" are one choice. A choice that is not listed has at most the smallest listed
value, because lists are complete from the top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from eval_gates.chance_baselines import UNDECIDABLE
from eval_gates.suites.endpoint_client import PLAIN_SAMPLING, RejectedRequest
from pipeline.core.record import Record

PATH = "chat/completions"  # after `/v1/`
MAX_LOGPROB = 0.01  # above 0, by rounding

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
    top_logprobs: int = Field(
        0, ge=0, le=20, description="most likely tokens that are listed; 0: none was needed"
    )

    @property
    def words(self) -> str:
        """Short form for people."""
        listed = f", {self.top_logprobs} most likely tokens" if self.top_logprobs else ""
        return f"by the chat API ({self.length_key}{listed})"

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

    def choice_body(
        self, model: str, messages: Sequence[Any], seed: int, template_arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the body of a request for the most likely first tokens."""
        return self.body(
            model,
            {"messages": list(messages)},
            max_tokens=1,
            seed=seed,
            settings={"logprobs": True, "top_logprobs": self.top_logprobs},
            template_arguments=template_arguments,
        )


def needs_extensions(sampling: Mapping[str, Any]) -> list[str]:
    """Return the keys of sampling that OpenAI's API lacks and that change something."""
    return [key for key, value in _EXTENSIONS.items() if sampling.get(key, value) != value]


class LogProbBound(float):
    """Upper bound of the log-probability of a choice that is not listed."""


def read_choices(body: Any, choices: Sequence[str]) -> list[tuple[float, bool]] | RejectedRequest:
    """Return each choice's log-probability, or its bound, and whether it is the greedy one."""
    try:
        first = body["choices"][0]["logprobs"]["content"][0]
        listed = [(str(each["token"]), float(each["logprob"])) for each in first["top_logprobs"]]
        sampled = (str(first["token"]), float(first["logprob"]))
        best = max(value for _, value in listed)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return RejectedRequest("its answer lacks the most likely tokens (top_logprobs)")
    if not all(value <= MAX_LOGPROB for _, value in (*listed, sampled)):  # NaN, too
        return RejectedRequest("its log-probabilities are not numbers up to 0")
    # A token that was drawn, and is less likely, may be listed in addition to the most likely ones.
    bound = min(value for token, value in listed if value == best or (token, value) != sampled)
    known: dict[str, float] = {}
    for token, value in (*listed, sampled):
        if value >= bound:
            known[token.strip()] = max(value, known.get(token.strip(), value))
    return [
        (known[text], known[text] >= best) if text in known else (LogProbBound(bound), False)
        for text in map(str.strip, choices)
    ]


def is_undecidable(values: Sequence[float], metric: str) -> bool:
    """Return whether missing values leave the score of one question open."""
    bounds = [value for value in values if isinstance(value, LogProbBound)]
    if not bounds or metric != "acc":
        return bool(bounds)
    exact = [value for value in values if not isinstance(value, LogProbBound)]
    return max(exact, default=float("-inf")) <= max(bounds)


def count_against(rows: Sequence[Mapping[str, Any]], side: str) -> list[dict[str, Any]]:
    """Return the rows with scores that cannot help a candidate to pass.

    An undecidable question is right for the baseline and wrong for the candidate.
    """
    score = float(side == "baseline")
    return [{**row, "score": score} if row.get(UNDECIDABLE) else {**row} for row in rows]
