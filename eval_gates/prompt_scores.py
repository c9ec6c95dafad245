"""Log-probabilities of a prompt's tokens (vLLM: `prompt_logprobs`).

Each arm reads the baseline's greedy answer, as in llama.cpp's `--kl-divergence`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from eval_gates.ask import Request
from eval_gates.replies import MAX_LOGPROB, choice_of
from prepare.errors import StageError
from recipes.generation import THOUGHT_MARKERS


class BrokenNumbersError(StageError):
    """A log-probability is invalid: the served model is broken."""


CHOICES = 2  # first and second, whose distance is the margin of a flip


class ScoredToken(NamedTuple):
    """One token of an answer, as an arm sees it."""

    logprob: float  # nats
    is_kept: bool  # it is the arm's first choice
    margin: float  # nats between the arm's first and second choice
    text: str = ""  # of the token, where the server gives it
    choice: str = ""  # of the arm's first choice, likewise


class Generated(NamedTuple):
    """A greedy answer."""

    tokens: list[int]
    text: str


def first_difference(here: Sequence[int], there: Sequence[int]) -> int:
    """Return the place of the first token that differs; of equal beginnings, the shorter length."""
    pairs = enumerate(zip(here, there, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(here), len(there)))


def tokenize(body: dict[str, Any], name: str = "") -> Request:
    """Return the request of token ids of a text, or of the conversation `name`."""
    return Request("/tokenize", body, read_tokens, name=name)


def render(body: dict[str, Any], name: str) -> Request:
    """Return the request of a conversation's token ids, and of whether they end in a thought."""
    asked = {**body, "return_token_strs": True}
    return Request("/tokenize", asked, _read_rendered, name=name)


def _read_rendered(body: Any) -> tuple[list[int], bool]:
    ids = read_tokens(body)
    texts = body.get("token_strs")
    text = "".join(map(str, texts)) if isinstance(texts, list) else ""
    return ids, any(
        text.rfind(markers.start) > text.rfind(markers.end) for markers in THOUGHT_MARKERS
    )


def generate(model: str, prompt: Sequence[int], tokens: int) -> Request:
    """Return the request of a greedy answer."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0}
    return Request("completions", {**body, "return_token_ids": True}, read_generated)


def score(model: str, prompt: Sequence[int], answer: Sequence[int]) -> Request:
    """Return the request of an answer's log-probabilities, as the end of a prompt."""
    tokens = [*prompt, *answer]
    body = {"model": model, "prompt": tokens, "max_tokens": 1, "temperature": 0}
    read = partial(read_scores, tokens=answer)
    return Request("completions", {**body, "prompt_logprobs": CHOICES}, read, len(tokens))


def read_tokens(body: Any) -> list[int]:
    """Return `/tokenize`'s tokens, else ValueError."""
    return _ids(body.get("tokens") if isinstance(body, dict) else None, "its answer has no tokens")


def read_generated(body: Any) -> Generated:
    """Return an answer's tokens, else ValueError."""
    choice = choice_of(body)
    lacking = "its answer has no token ids (return_token_ids)"
    return Generated(_ids(choice.get("token_ids"), lacking), str(choice.get("text", "")))


def read_scores(body: Any, tokens: Sequence[int]) -> list[ScoredToken]:
    """Return the scores of a prompt's last tokens, else ValueError."""
    listed = choice_of(body).get("prompt_logprobs")
    if not isinstance(listed, list) or len(listed) < len(tokens):
        raise ValueError("its answer has no log-probabilities of the prompt (prompt_logprobs)")
    places = listed[len(listed) - len(tokens) :]
    return [_scored(place, token) for place, token in zip(places, tokens, strict=True)]


def share_kept(scored: Sequence[ScoredToken]) -> float:
    """Return the share of tokens that are the first choice."""
    if not scored:
        raise ValueError("an answer without tokens shows nothing")
    return sum(token.is_kept for token in scored) / len(scored)


def nats(scored: Sequence[ScoredToken]) -> float:
    """Return mean nats a token."""
    return -sum(token.logprob for token in scored) / len(scored)


def thought_end(scored: Sequence[ScoredToken], *, has_begun: bool = False) -> int:
    """Return the number of thought tokens, markers included."""
    text = "".join(token.text for token in scored)
    for markers in THOUGHT_MARKERS:
        closed = text.find(markers.end)
        if closed >= 0:
            end = closed + len(markers.end)
            lengths = accumulate(len(token.text) for token in scored)
            return 1 + next(place for place, length in enumerate(lengths) if length >= end)
        if has_begun or text.lstrip().startswith(markers.start):
            return len(scored)
    return 0


def _scored(place: Any, token: int) -> ScoredToken:
    try:
        logprobs = {int(key): float(value["logprob"]) for key, value in place.items()}
        own = logprobs[token]
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"its log-probabilities lack the token {token}") from error
    if any(math.isnan(value) or value > MAX_LOGPROB for value in logprobs.values()):
        raise BrokenNumbersError("its log-probabilities are not numbers: the model is broken")
    best, second, *_ = [*sorted(logprobs.values(), reverse=True), -math.inf]
    first = max(logprobs, key=lambda candidate: (logprobs[candidate], candidate == token))
    text, choice = (_text(place.get(str(candidate))) for candidate in (token, first))
    return ScoredToken(own, own >= best, best - second, text, choice)


def _text(told: Any) -> str:
    return str(told.get("decoded_token") or "") if isinstance(told, dict) else ""


def _ids(value: Any, lacking: str) -> list[int]:
    if not isinstance(value, list) or any(type(number) is not int for number in value):
        raise ValueError(lacking)
    return list(value)
