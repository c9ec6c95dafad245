"""Questions and answers as rows of `questions.jsonl` and `answers.jsonl`, and replies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from eval_gates.answer_validity import REFUSED, THOUGHTS_ONLY, UNREAD

GROUP = "group"
"""Key of a question and of an answer: the subject or the member that the question belongs to."""

Answer = dict[str, Any]
"""One line of `answers.jsonl`: id, cluster and group of the question, prompt_sha256, `answer` (a
text, a list of texts, or each choice's log-probability), `score` (0 to 1), the counts of
:func:`describe`, and the suite's own keys."""

SEEDS = 1 << 31


@dataclass(frozen=True)
class Question:
    """One question; the answer is generated unless there are continuations.

    `data` has what its suite scores with. Its keys are keys of the line.
    """

    id: str
    prompt: str = ""  # without the chat template
    messages: tuple[dict[str, Any], ...] = ()  # for the server's chat API, instead of the prompt
    server: dict[str, Any] = field(default_factory=dict)  # chat request: tools, response_format
    continuations: tuple[str, ...] = ()  # each is scored as what follows the prompt
    contexts: tuple[str, ...] = ()  # one for each continuation where they differ; else the prompt
    # As lm-eval's `generation_kwargs`; vLLM refuses more than four stop strings (`until`).
    generate: dict[str, Any] = field(default_factory=dict)
    is_rendered: bool = False  # the prompt has the chat template already
    cluster: str = ""
    group: str = ""
    expected: str = ""  # the right answer, for people
    data: dict[str, Any] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """Return the question as a line, without defaults."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "data"}
        return {**{key: value for key, value in own.items() if value}, **self.data}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Question:
        """Return the question of a line."""
        own = {each.name for each in fields(cls)} - {"data"}
        found = {key: row[key] for key in own & row.keys()}
        for key in ("messages", "continuations", "contexts"):
            if key in found:
                found[key] = tuple(found[key])
        return cls(**found, data={key: row[key] for key in row.keys() - own})


class ToolCall(NamedTuple):
    """Function that an answer calls; arguments may be malformed JSON."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """One answer of a server, without the model's thoughts."""

    text: str = ""
    tokens: int = 0  # generated, thoughts included
    is_truncated: bool = False  # it reached its largest number of tokens
    is_unclosed: bool = False  # its last thought has no end
    is_refused: bool = False  # the endpoint withheld it
    is_thought: bool = False  # the server gave text only in its field of thoughts
    calls: tuple[ToolCall, ...] = ()  # by the server's parser; of chat requests only
    # Each continuation's log-probability, and whether it is the greedy one.
    values: tuple[tuple[float, bool], ...] = ()
    is_named: bool = False  # a chat API wrote the choice; `values` only tell which one it is
    own: Mapping[str, Any] = field(default_factory=dict)  # what a suite that asks itself scores

    @property
    def is_unfinished(self) -> bool:
        return self.is_truncated or self.is_unclosed

    @property
    def is_unnamed(self) -> bool:
        """Whether the text names none of the choices."""
        return self.is_named and not any(greedy for _, greedy in self.values)


class Asked(NamedTuple):
    """A question with its replies, one per sample."""

    question: Question
    replies: Sequence[Reply]
    other: Question  # of another cluster, to which the replies are unrelated


def describe(question: Question, replies: Sequence[Reply], *, thinks: bool) -> Answer:
    """Return the keys of an answer that are common to all suites.

    Args:
        question: as it was asked.
        thinks: an unfinished text is not read.
    """
    row: Answer = {"id": question.id, "prompt_sha256": digest(question)}
    if question.cluster:
        row["cluster"] = question.cluster
    if question.group:
        row[GROUP] = question.group
    if question.continuations and not replies[0].is_named:
        return {**row, "answer": [value for value, _ in replies[0].values]}
    return {
        **row,
        "answer": unwrap([reply.text for reply in replies]),
        "tokens": [reply.tokens for reply in replies],
        "truncated": sum(reply.is_truncated for reply in replies),
        "unclosed": sum(reply.is_unclosed for reply in replies),
        REFUSED: sum(reply.is_refused for reply in replies),
        THOUGHTS_ONLY: sum(reply.is_thought for reply in replies),
        UNREAD: sum(
            reply.is_unnamed or (thinks and not reply.is_named and reply.is_unfinished)
            for reply in replies
        ),
    }


def digest(question: Question) -> str:
    """Return the SHA-256 of a question's prompt, in hex."""
    keys = ("prompt", "messages", "server", "continuations", "contexts", "generate")
    content = json.dumps([getattr(question, key) for key in keys], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def sample_seed(question: str, number: int) -> int:
    """Return a sample's seed. Common seeds would make questions dependent."""
    content = hashlib.sha256(f"{number}/{question}".encode()).hexdigest()
    return int(content[:12], 16) % SEEDS


def choose(values: Sequence[float]) -> int:
    """Return the place of the first largest value."""
    return max(range(len(values)), key=values.__getitem__)


def unwrap(values: list[Any]) -> Any:
    """Return the only value itself, or several as a list."""
    return values[0] if len(values) == 1 else values


def mean(values: Sequence[float]) -> float:
    """Return the mean of one question's values."""
    return sum(values) / len(values)
