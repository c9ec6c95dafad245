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
# Even a small model is far below this on plain English; random weights give the vocabulary's size.
MAXIMUM_PERPLEXITY = 1000.0


def run(context: StageContext) -> dict[str, Any]:
    """Score the passage and generate a few words.

    Raises:
        ServingError: empty or endless answers, log-probabilities that are not finite, or a
            perplexity out of all proportion to the baseline's.
    """
    perplexity = passage_perplexity(context.runtime["url"])
    text = complete(context.runtime["url"])
    where = context.runtime["server_log"]
    if not text.strip():
        raise ServingError("the served model answers with nothing", where=where, cure=CURE)
    check_perplexity(perplexity, MAXIMUM_PERPLEXITY, "a model that speaks English stays", where)
    facts = {"perplexity": perplexity, "sample": text, "server": context.runtime["server"]}
    if "baseline" in context.spec.inputs:
        baseline = float(context.input_record("baseline").result["perplexity"])
        limit = baseline * MAXIMUM_PERPLEXITY_RATIO
        check_perplexity(perplexity, limit, "twice the baseline's is", where)
        facts["perplexity_ratio"] = perplexity / baseline
    return facts


CURE = (
    "the weights or the engine's kernel for them are broken; look at the variant's verify record, "
    "and try another recipe or engine version"
)


def check_perplexity(perplexity: float, limit: float, words: str, where: str) -> None:
    """Raise ServingError unless the perplexity is a number and below the limit."""
    if not perplexity <= limit:  # also true for NaN
        raise ServingError(
            f"the served model is incoherent: perplexity {perplexity:.1f} on plain English, "
            f"where {words} below {limit:.1f}",
            where=where,
            cure=CURE,
        )


def passage_perplexity(url: str) -> float:
    """Perplexity of the passage's tokens after the first, by the server's own scoring."""
    answer = post(url, {"prompt": PASSAGE, "max_tokens": 1, "echo": True, "logprobs": 1})
    # The first token has no log-probability; the last one was generated.
    values = answer["choices"][0]["logprobs"]["token_logprobs"][1:-1]
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return math.nan
    try:
        return math.exp(-sum(values) / len(values))
    except OverflowError:  # vLLM writes -9999 for minus infinity
        return math.inf


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
