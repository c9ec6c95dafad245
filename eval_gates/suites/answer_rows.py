"""Fields that suites copy from lm-eval's samples to rows of answers."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from eval_gates.chance_baselines import UNDECIDABLE
from eval_gates.clusters import labels_of, partners
from eval_gates.suites.chat_form import LogProbBound, is_undecidable
from eval_gates.suites.generated_text import GeneratedText
from pipeline.core.errors import StageError

# lm-eval puts this text where a server gave no answer, and would score it like any other.
NO_ANSWER = "LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER"


def partners_of(questions: list[dict[str, Any]]) -> dict[str, int]:
    """Map each question's id to the position of an unrelated question."""
    ids = [question["id"] for question in questions]
    return dict(zip(ids, partners(labels_of(questions)), strict=True))


def common_fields(question: dict[str, Any], sample: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of every row: question's id, cluster, and the prompt's digest."""
    sent = json.dumps(sample["arguments"], sort_keys=True, default=str)
    row = {"id": question["id"], "prompt_sha256": hashlib.sha256(sent.encode()).hexdigest()}
    return {**row, "cluster": question["cluster"]} if "cluster" in question else row


def choice_fields(sample: dict[str, Any], metric: str) -> dict[str, Any]:
    """Return the fields of a chosen answer: each choice's log-likelihood.

    By the chat API a choice may be unlisted; its value is an upper bound then.
    """
    values = [response[0] for response in sample["filtered_resps"]]
    unlisted = [n for n, value in enumerate(values) if isinstance(value, LogProbBound)]
    return {
        "answer": [float(value) for value in values],
        **({"unlisted": unlisted} if unlisted else {}),
        **({UNDECIDABLE: True} if is_undecidable(values, metric) else {}),
    }


def texts_of(sample: dict[str, Any]) -> list[GeneratedText]:
    """Return the generated texts, one per sample, before the task's filters."""
    return [check_text(responses[0], sample) for responses in sample["resps"]]


def check_text(text: Any, sample: dict[str, Any]) -> GeneratedText:
    """Return the text; StageError if the server gave none."""
    if not isinstance(text, str) or text == NO_ANSWER:
        raise StageError(
            f"the server gave no answer to question {sample['doc_id']}",
            hint="read the server's log",
        )
    return text if isinstance(text, GeneratedText) else GeneratedText(text)


def unwrap(values: list[Any]) -> Any:
    """Return the only value itself, or several as a list."""
    return values[0] if len(values) == 1 else values
