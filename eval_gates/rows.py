"""Questions, replies and answers: lines of `questions.jsonl` and `answers.jsonl`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from eval_gates.reply_forms import ENTITIES, has_entities

FORMS = "forms"  # own key of answers in another form than OpenAI's
PROMPT_DIGEST = "asked_sha256"  # key of an lm-eval question: equal for copies
CALLS = "calls"  # own key: each sample's calls, where the server's parser reads them
SEEDS = 1 << 31
Name = Annotated[str, Field(min_length=1)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


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
    part: str = ""  # its value of the policy's `parts_by`
    expected: str = ""  # the right answer, for people
    data: dict[str, Any] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """Return a line without defaults."""
        own = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name != "data"
        }
        return {**{key: value for key, value in own.items() if value}, **self.data}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Question:
        """Parse a line; ValueError without an id."""
        if not isinstance(row.get("id"), str):
            raise ValueError("a question has no id")
        own = {field.name for field in fields(cls)} - {"data"}
        values = {key: row[key] for key in own & row.keys()}
        for key in ("messages", "continuations", "contexts"):
            if key in values:
                values[key] = tuple(values[key])
        return cls(**values, data={key: row[key] for key in row.keys() - own})


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
    forms: tuple[str, ...] = ()  # of :mod:`eval_gates.reply_forms`, that were read
    own: Mapping[str, Any] = field(default_factory=dict)  # what a suite that asks itself scores

    @property
    def is_unfinished(self) -> bool:
        return self.is_truncated or self.is_unclosed

    @property
    def is_unnamed(self) -> bool:
        """Whether the text names none of the choices."""
        return self.is_named and not any(greedy for _, greedy in self.values)


class AnsweredQuestion(NamedTuple):
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

    id: Name
    prompt_sha256: Name
    score: Annotated[Number, Field(ge=0, le=1)]
    answer: Any = None  # a text, a list of the samples' texts, or each choice's log-probability
    cluster: str = ""
    group: str = ""
    part: str = ""  # its value of the policy's `parts_by`
    tokens: tuple[Count, ...] = ()  # of each generated sample; the counts below are of samples
    truncated: Count = 0
    unclosed: Count = 0
    refused: Count = 0  # withheld by the endpoint
    thoughts_only: Count = 0  # whose text is in the field of thoughts alone
    unread: Count = 0  # scored 0 without being read: cut off, or without code
    unrelated: Number | None = None
    empty: Number | None = None
    nats: Number | None = None
    own: Mapping[str, Any] = field(default_factory=dict)  # the suite's own keys

    @classmethod
    def of(cls, asked: AnsweredQuestion, scored: Score, *, thinks: bool) -> Answer:
        """Return an answer; a thinking model's unfinished text is not read."""
        question = asked.question
        replies = asked.replies
        forms = {form for reply in replies for form in reply.forms}
        forms |= set(scored.own.get(FORMS, ()))
        if any(has_entities(reply.text) for reply in replies) and not has_entities(question.prompt):
            forms.add(ENTITIES)
        answer = cls(
            question.id,
            scored.prompt_sha256 or digest(question),
            scored.score,
            cluster=question.cluster,
            group=question.group,
            part=question.part,
            unrelated=scored.unrelated,
            empty=scored.empty,
            nats=scored.nats,
            own={**scored.own, FORMS: sorted(forms)} if forms else scored.own,
        )
        if question.continuations and not replies[0].is_named:
            return replace(answer, answer=[value for value, _ in replies[0].values])
        unread = scored.unread
        if unread is None:
            unread = sum(
                reply.is_unnamed or (thinks and not reply.is_named and reply.is_unfinished)
                for reply in replies
            )
        return replace(
            answer,
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
        unset = {key for key in ("cluster", "group", "part") if not getattr(self, key)}
        unset |= {key for key in NUMBERS if getattr(self, key) is None}
        unset |= set() if self.tokens else {"tokens", *COUNTS}
        own = [field.name for field in fields(self) if field.name not in {"own", *unset}]
        return {**{key: getattr(self, key) for key in own}, **self.own}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Answer:
        """Parse a line; ValueError if a value is missing or impossible.

        `answer` may be missing.
        """
        if not isinstance(row, Mapping):
            raise ValueError("an answer is not an object")
        names = {field.name for field in fields(cls)} - {"own"}
        own = {key: row[key] for key in row.keys() - names}
        try:
            answer = _ANSWER.validate_python(
                {**{k: row[k] for k in names & row.keys()}, "own": own}
            )
        except ValidationError as error:
            fault = error.errors()[0]
            raise ValueError(
                f"question {row.get('id')} has the {fault['loc'][0]} {fault['input']!r:.50}: "
                f"{fault['msg']}"
            ) from error
        missing = {*COUNTS} - row.keys() if answer.tokens else set()
        if missing or ("tokens" in row and not answer.tokens):
            raise ValueError(f"question {answer.id} has no {min(missing, default='tokens')}")
        if any(getattr(answer, key) > len(answer.tokens) for key in COUNTS):
            raise ValueError(f"question {answer.id} counts more than its answers")
        return answer


COUNTS = ("truncated", "unclosed", "refused", "thoughts_only", "unread")
NUMBERS = ("unrelated", "empty", "nats")


_ANSWER = TypeAdapter(Answer)


def digest(question: Question) -> str:
    """Return the SHA-256 of a prompt, in hex."""
    keys = ("prompt", "messages", "server", "continuations", "contexts", "generate")
    content = json.dumps([getattr(question, key) for key in keys], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def digest_document(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a document of lm-eval or of a cluster's value, in hex."""
    content = json.dumps(document, sort_keys=True, default=str)
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


Row = TypeVar("Row", bound=Question | Answer)


def of_group(rows: Sequence[Row], group: str | None) -> list[Row]:
    """Return the rows of that group, which a gate counts; None is all groups."""
    return [row for row in rows if group in (None, row.group)]
