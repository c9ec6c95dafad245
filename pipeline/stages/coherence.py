"""Asks a served model whether it speaks at all, before any long evaluation.

A passage of plain English is scored: a model that quantization (or a wrong kernel) has broken
gives it a perplexity many times the baseline's, which a glance at an answer could miss.
"""

from __future__ import annotations

import math
from typing import Any

from pipeline.errors import ServingError
from pipeline.serving_names import SERVED_NAME
from pipeline.stages.context import StageContext

REVISION = 1

PASSAGE = (
    "The old library stood at the corner of the market square. Every morning the doors were "
    "opened at nine, and the first visitors were usually students who wanted a quiet place to "
    "read. In the winter months it was also one of the few warm rooms in the town, so people came "
    "to sit by the windows, drink tea and talk about the weather."
)
PROMPT = "The capital of France is"
MAXIMUM_PERPLEXITY_RATIO = 2.0


def run(context: StageContext) -> dict[str, Any]:
    """Score the passage and generate a few words.

    Returns:
        perplexity (None where it is not a number), the sample, facts about the server, and
        `incoherent`: why the model must be held to be broken, or "" when it is not.

    Raises:
        ServingError: the server does not answer.
    """
    perplexity = passage_perplexity(context.runtime["url"])
    text = complete(context.runtime["url"])
    baseline = None
    if "baseline" in context.spec.inputs:
        baseline = float(context.input_record("baseline").result["perplexity"])
    return {
        "perplexity": perplexity,
        "perplexity_ratio": perplexity / baseline if perplexity and baseline else None,
        "sample": text,
        "incoherent": incoherence(perplexity, baseline, text),
        "server": context.runtime["server"],
    }


def incoherence(perplexity: float | None, baseline: float | None, text: str) -> str:
    """Why the model must be held to be broken; "" when it speaks.

    Args:
        perplexity: on the passage, None where a log-probability was not a number.
        baseline: the baseline's perplexity; None for the baseline itself.
        text: what it generated.
    """
    if perplexity is None:
        return "the served model is broken: its log-probabilities are not numbers"
    if not text.strip():
        return "the served model answers with nothing"
    if baseline is not None and perplexity > MAXIMUM_PERPLEXITY_RATIO * baseline:
        return (
            f"the served model is incoherent: perplexity {perplexity:.1f} on plain English, "
            f"more than {MAXIMUM_PERPLEXITY_RATIO:g} times the baseline's {baseline:.1f}"
        )
    return ""


def passage_perplexity(url: str) -> float | None:
    """Perplexity of the passage's tokens after the first, by the server's own scoring."""
    answer = post(url, {"prompt": PASSAGE, "max_tokens": 1, "echo": True, "logprobs": 1})
    # The first token has no log-probability; the last one was generated.
    values = answer["choices"][0]["logprobs"]["token_logprobs"][1:-1]
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return None
    try:
        return math.exp(-sum(values) / len(values))
    except OverflowError:
        return None


def complete(url: str) -> str:
    """A short greedy answer."""
    answer = post(url, {"prompt": PROMPT, "max_tokens": 16})
    return str(answer["choices"][0]["text"])


def post(url: str, request: dict[str, Any]) -> dict[str, Any]:
    """One greedy completion request; raises ServingError when the server does not answer it."""
    import httpx

    body = {"model": SERVED_NAME, "temperature": 0, **request}
    try:
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=300, trust_env=False)
    except httpx.HTTPError as error:
        raise ServingError(f"the model server did not answer: {error}", where=url) from error
    if answer.status_code != 200:
        raise ServingError(
            f"the model server answered {answer.status_code}: {answer.text[:500]}", where=url
        )
    data: dict[str, Any] = answer.json()
    return data
