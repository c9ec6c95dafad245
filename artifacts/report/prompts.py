"""Questions and answers as text, by kind of suite."""

from __future__ import annotations

from string import ascii_uppercase
from typing import Any

from eval_gates.suites.suite_kind import kind_of
from recipes.policy import AnySuite

Row = dict[str, Any]
LONGEST = 4000
"""Characters of a prompt or an answer that the report shows."""


def prompt_of(question: Row | None) -> str | None:
    """Return the laid-out prompt, or None without text.

    A chat prompt omits the model's chat template. Tasks of lm-eval have no text, because only their
    environment reads their dataset.
    """
    prompt = (question or {}).get("prompt")
    return shorten(str(prompt)) if prompt else None


def expected_of(question: Row | None) -> str | None:
    """Return the correct answer, or None if it is not text."""
    expected = (question or {}).get("expected")
    return shorten(str(expected)) if expected else None


def answer_of(suite: AnySuite, question: Row | None, row: Row) -> str:
    """Return one side's choice or text."""
    answer = row["answer"]
    if isinstance(answer, list) and answer and isinstance(answer[0], float | int):
        number = find_choice(suite, question, answer)
        likelihoods = ", ".join(f"{value:.2f}" for value in answer)
        name = _choice(question, number) or f"choice {number + 1}"
        return f"{name}\n(log-likelihoods {likelihoods})"
    texts = answer if isinstance(answer, list) else [answer]
    words = "\n--- another sample ---\n".join(str(text) for text in texts)
    return shorten(words) + _outcome(row)


def find_choice(suite: AnySuite, question: Row | None, likelihoods: list[float]) -> int:
    """Return the most likely choice, by the suite's measure."""
    values = kind_of(suite).choice_values(suite, likelihoods, _choices(question))
    return max(range(len(values)), key=values.__getitem__)


def is_same_answer(suite: AnySuite, question: Row | None, before: Row, after: Row) -> bool:
    """Return whether both sides gave the same answer, with any likelihood."""
    if before["score"] != after["score"]:
        return False
    sides = [before["answer"], after["answer"]]
    if all(isinstance(side, list) and side and isinstance(side[0], float | int) for side in sides):
        return find_choice(suite, question, sides[0]) == find_choice(suite, question, sides[1])
    return bool(sides[0] == sides[1])


def shorten(text: str) -> str:
    """Return at most :data:`LONGEST` characters, and the number omitted."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n[{len(text) - LONGEST:,} more characters are left out]"


def _choices(question: Row | None) -> list[str]:
    return list((question or {}).get("choices") or [])


def _choice(question: Row | None, number: int) -> str | None:
    choices = _choices(question)
    return f"{ascii_uppercase[number]}. {choices[number]}" if number < len(choices) else None


def _outcome(row: Row) -> str:
    outcome = row.get("outcome")
    if outcome is None:
        return ""
    return f"\n(tests: {', '.join(outcome) if isinstance(outcome, list) else outcome})"
