"""Parts of which suites make rows of answers out of lm-eval's samples."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from eval_gates.clusters import labels_of, partners
from pipeline.core.errors import StageError

# lm-eval puts this text where a server gave no answer, and would score it like any other.
NO_ANSWER = "LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER"


def partners_of(questions: list[dict[str, Any]]) -> dict[str, int]:
    """By a question's id, the place of another question, which its answer does not answer."""
    ids = [question["id"] for question in questions]
    return dict(zip(ids, partners(labels_of(questions)), strict=True))


def common_fields(question: dict[str, Any], sample: dict[str, Any]) -> dict[str, Any]:
    """Fields of every row: the question's id and cluster, and the digest of what was sent."""
    sent = json.dumps(sample["arguments"], sort_keys=True, default=str)
    row = {"id": question["id"], "prompt_sha256": hashlib.sha256(sent.encode()).hexdigest()}
    return {**row, "cluster": question["cluster"]} if "cluster" in question else row


def likelihoods(sample: dict[str, Any]) -> list[float]:
    """The log-likelihood of each choice."""
    return [float(response[0]) for response in sample["filtered_resps"]]


def texts_of(sample: dict[str, Any]) -> list[str]:
    """The generated texts, one a sample drawn; raises StageError where the server gave none."""
    return [check_text(text, sample) for text in sample["filtered_resps"]]


def check_text(text: Any, sample: dict[str, Any]) -> str:
    """The text, if it is one; raises StageError where the server gave none."""
    if not isinstance(text, str) or text == NO_ANSWER:
        raise StageError(
            f"the server gave no answer to question {sample['doc_id']}",
            hint="read the server's log",
        )
    return text


def unwrap(values: list[Any]) -> Any:
    """The value itself where there is one only."""
    return values[0] if len(values) == 1 else values
