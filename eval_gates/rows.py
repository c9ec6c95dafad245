"""Questions, replies and answers: lines of `questions.jsonl` and `answers.jsonl`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, NamedTuple

SEEDS = 1 << 31


@dataclass(frozen=True)
class Question:
    """One question; the answer is generated unless there are continuations.

    `data` are keys of the line.
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
        """Return a line without defaults."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "data"}
        return {**{key: value for key, value in own.items() if value}, **self.data}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Question:
        """Parse a line; ValueError without an id."""
        if not isinstance(row.get("id"), str):
            raise ValueError("a question has no id")
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


@dataclass(frozen=True)
class Score:
    """A suite's result of one question's replies."""

    score: float  # 0 to 1; mean of the samples
    unrelated: float | None = None  # of the same replies to another question
    empty: float | None = None  # of an empty reply
    nats: float | None = None  # mean negative log-probability of the baseline's tokens
    unread: int | None = None  # replies scored 0 without being read; None: counted from the replies
    prompt_sha256: str = ""  # of what the arm read, if the suite renders it
    own: Mapping[str, Any] = field(default_factory=dict)  # the suite's keys of the line


@dataclass(frozen=True)
class Answer:
    """One line of `answers.jsonl`. The last five numbers are None where a suite has none."""

    id: str
    prompt_sha256: str
    score: float
    answer: Any = None  # a text, a list of the samples' texts, or each choice's log-probability
    cluster: str = ""
    group: str = ""
    tokens: tuple[int, ...] = ()  # of each generated sample; the counts below are of samples
    truncated: int = 0
    unclosed: int = 0
    refused: int = 0  # withheld by the endpoint
    thoughts_only: int = 0  # whose text is in the field of thoughts alone
    unread: int = 0  # scored 0 without being read: cut off, or without code
    unrelated: float | None = None
    empty: float | None = None
    nats: float | None = None
    own: Mapping[str, Any] = field(default_factory=dict)  # the suite's own keys

    @classmethod
    def of(cls, asked: Asked, scored: Score, *, thinks: bool) -> Answer:
        """Return an answer; a thinking model's unfinished text is not read."""
        question, replies = asked.question, asked.replies
        found = cls(
            question.id,
            scored.prompt_sha256 or digest(question),
            scored.score,
            cluster=question.cluster,
            group=question.group,
            unrelated=scored.unrelated,
            empty=scored.empty,
            nats=scored.nats,
            own=scored.own,
        )
        if question.continuations and not replies[0].is_named:
            return replace(found, answer=[value for value, _ in replies[0].values])
        unread = scored.unread
        if unread is None:
            unread = sum(
                reply.is_unnamed or (thinks and not reply.is_named and reply.is_unfinished)
                for reply in replies
            )
        return replace(
            found,
            answer=unwrap([reply.text for reply in replies]),
            tokens=tuple(reply.tokens for reply in replies),
            truncated=sum(reply.is_truncated for reply in replies),
            unclosed=sum(reply.is_unclosed for reply in replies),
            refused=sum(reply.is_refused for reply in replies),
            thoughts_only=sum(reply.is_thought for reply in replies),
            unread=unread,
        )

    def to_row(self) -> dict[str, Any]:
        """Return the line, without what the answer lacks."""
        unset = {key for key in ("cluster", "group") if not getattr(self, key)}
        unset |= {key for key in NUMBERS if getattr(self, key) is None}
        unset |= set() if self.tokens else {"tokens", *COUNTS}
        own = [each.name for each in fields(self) if each.name not in {"own", *unset}]
        return {**{key: getattr(self, key) for key in own}, **self.own}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Answer:
        """Parse a line; ValueError if a value is missing or impossible.

        `answer` may be missing.
        """
        if not isinstance(row, Mapping):
            raise ValueError("an answer is not an object")
        names = {each.name for each in fields(cls)} - {"own"}
        found = {key: row[key] for key in names & row.keys()}
        for key in ("id", "prompt_sha256", "cluster", "group"):
            if not isinstance(found.setdefault(key, ""), str):
                raise ValueError(f"an answer's '{key}' is not a text")
        place = f"question {found['id']}"
        if not found["id"] or not found["prompt_sha256"]:
            raise ValueError(f"{place} has no id, or no digest of its prompt")
        if not _is_number(found.get("score")) or not 0 <= found["score"] <= 1:  # NaN is refused
            raise ValueError(f"{place} has the score {found.get('score')}")
        for key in NUMBERS:
            if found.get(key) is not None and not _is_number(found[key]):
                raise ValueError(f"{place} has no number '{key}'")
        tokens = found.get("tokens", [])
        is_list = isinstance(tokens, list) and all(map(_is_count, tokens))
        if not is_list or ("tokens" in found and not tokens):
            raise ValueError(f"{place} has no tokens of its answers")
        found["tokens"] = tuple(tokens)
        for key in COUNTS if tokens else ():
            if not _is_count(found.get(key)) or found[key] > len(tokens):
                raise ValueError(f"{place} has no number '{key}'")
        return cls(**found, own={key: row[key] for key in row.keys() - names})


COUNTS = ("truncated", "unclosed", "refused", "thoughts_only", "unread")
NUMBERS = ("unrelated", "empty", "nats")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_real and isfinite(value)


def digest(question: Question) -> str:
    """Return the SHA-256 of a prompt, in hex."""
    keys = ("prompt", "messages", "server", "continuations", "contexts", "generate")
    content = json.dumps([getattr(question, key) for key in keys], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def sample_seed(question: str, number: int) -> int:
    """Return a sample's seed; common ones would make questions dependent."""
    content = hashlib.sha256(f"{number}/{question}".encode()).hexdigest()
    return int(content[:12], 16) % SEEDS


def choose(values: Sequence[float]) -> int:
    """Return the place of the first largest value."""
    return max(range(len(values)), key=values.__getitem__)


def unwrap(values: list[Any]) -> Any:
    """Return the only value itself, or several as a list."""
    return values[0] if len(values) == 1 else values
