"""Retrieval from long texts: numbers hidden in a text, asked for at its end.

The cases are RULER's (Hsieh et al. 2024): one key; many similar keys; several values of one key.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import Field, field_validator

from eval_gates.depth import DepthSuite
from eval_gates.rows import Answer, Question, Reply
from eval_gates.suites import rouge
from eval_gates.suites.generation import GeneratingTask, TextKind
from eval_gates.suites.sources import QuestionSource, Row
from eval_gates.suites.suite_kind import QuestionOrder, Read, Render
from prepare.digest import digest_bytes
from prepare.errors import EvaluationDataError, UsageError
from recipes.generation import MaxTokens
from recipes.policy import Suite

Needles = Literal["single", "multi_key", "multi_value"]
NEEDLES: tuple[Needles, ...] = get_args(Needles)
VALUES = 4  # of one key, where several are asked

# English prose has 3.9 to 4.6 characters a token; keys and numbers have fewer. So a text has fewer
# tokens than its length states.
CHARACTERS_PER_TOKEN = 3.5
FRAME_TOKENS = 128  # of the question and of the chat template
SENTENCES_PER_OTHER_KEY = 16
MIN_OTHER_KEYS = 3

_TEXT = "Some special numbers are hidden in this text.\n\n{text}\n\n"
PROMPTS = {
    "chat": f"{_TEXT}{{question}}",
    # Models of 135M parameters copy several numbers only after a sentence's beginning.
    "completion": f"{_TEXT}Question: {{question}}\nAnswer: {{lead}}",
}
_NUMBER = re.compile(r"(?<!\d)\d{7}(?!\d)")
_BETWEEN_DIGITS = re.compile(r"(?<=\d)[, _](?=\d{3})")
Length = Annotated[int, Field(ge=512, le=4_000_000)]


class NeedleCase(NamedTuple):
    """One text with hidden numbers."""

    text: str
    key: str
    values: tuple[str, ...]  # the numbers of the key, in the text's order


def build_case(seed: str, needles: Needles, characters: int, depth: float) -> NeedleCase:
    """Return the case of that seed.

    `depth` is the asked number's place as a share of the text; several are spread evenly.
    """
    draw = random.Random(seed)  # noqa: S311 - a draw, not a secret
    key = "-".join(draw.sample(_words(), 2))
    count = VALUES if needles == "multi_value" else 1
    numbers = _draw_numbers(draw, count)
    depths = sorted((depth + place / count) % 1 for place in range(count))
    hidden = [(place, needle(key, number)) for place, number in zip(depths, numbers, strict=True)]
    room = characters - sum(len(sentence) + 1 for _, sentence in hidden)
    filling = _draw_filling(draw, room)
    if needles == "multi_key":
        words = [word for word in _words() if word not in key.split("-")]
        most = max(MIN_OTHER_KEYS, len(filling) // SENTENCES_PER_OTHER_KEY)
        first, second = key.split("-")
        others = [
            f"{first}-{word}" if place % 2 else f"{word}-{second}"
            for place, word in enumerate(draw.sample(words, min(most, len(words))))
        ]
        other_numbers = _draw_numbers(draw, len(others), taken=numbers)
        sentences = [needle(*pair) for pair in zip(others, other_numbers, strict=True)]
        hidden += [(draw.random(), sentence) for sentence in sentences]
        room -= sum(len(sentence) + 1 for sentence in sentences)
        ends = accumulate(len(sentence) + 1 for sentence in filling)
        filling = [line for line, end in zip(filling, ends, strict=True) if end <= room]
    total = len(filling) or 1
    placed = [((number + 0.5) / total, sentence) for number, sentence in enumerate(filling)]
    text = " ".join(sentence for _, sentence in sorted([*placed, *hidden]))
    return NeedleCase(text, key, tuple(numbers))


def needle(key: str, number: str) -> str:
    """Return the hiding sentence."""
    return f"One of the special numbers for {key} is {number}."


def share_found(answer: str, values: Sequence[str]) -> float:
    """Return the share of the values among as many first numbers of the answer.

    A comma or space may separate thousands; digits may be of any script.
    """
    digits = _NUMBER.findall(_BETWEEN_DIGITS.sub("", answer))
    numbers = dict.fromkeys(str(int(number)) for number in digits)
    return len(set(values) & set(list(numbers)[: len(values)])) / len(values)


@cache
def _sentences() -> tuple[str, ...]:
    texts = (row["document"] for row in rouge.read_carried())
    return tuple(line for text in texts for line in rouge.a_sentence_a_line(text).split("\n"))


@cache
def _words() -> tuple[str, ...]:
    words = {word for line in _sentences() for word in re.findall(r"\b[a-z]{5,8}\b", line)}
    return tuple(sorted(words))


def _draw_numbers(draw: random.Random, count: int, taken: Sequence[str] = ()) -> list[str]:
    drawn = dict.fromkeys(taken)
    while len(drawn) < len(taken) + count:
        drawn[str(draw.randrange(1_000_000, 10_000_000))] = None
    return list(drawn)[len(taken) :]


def _draw_filling(draw: random.Random, characters: int) -> list[str]:
    """Return random sentences; all occur before one repeats."""
    sentences: list[str] = []
    while characters > 0:
        for sentence in draw.sample(_sentences(), len(_sentences())):
            characters -= len(sentence) + 1
            if characters <= 0:
                break
            sentences.append(sentence)
    return sentences


class NeedlesTask(GeneratingTask):
    """Numbers to find in long texts."""

    kind: Literal["needles"] = "needles"
    max_tokens: MaxTokens = 128
    lengths: list[Length] = Field(
        default=[4096, 16384, 65536],
        min_length=1,
        max_length=100,
        description="largest numbers of tokens of prompt and answer together. The texts have 3.5 "
        "characters a token, so that their tokens are fewer with most tokenizers. Lengths beyond "
        "the model's are left out",
    )
    cases: int = Field(
        200, ge=3, le=100_000, description="of each length; a third of each kind of case"
    )

    @field_validator("lengths")
    @classmethod
    def _each_once(cls, lengths: list[int]) -> list[int]:
        if len(set(lengths)) < len(lengths):
            raise ValueError("a length is there twice")
        return lengths


class NeedlesKind(TextKind[NeedlesTask]):
    """Retrieval from long texts that are made here."""

    task = NeedlesTask
    sources = ("builtin",)
    carried = rouge.CARRIED_FILE
    decision = DepthSuite
    assumed_baseline = 0.9
    stops = {"completion": ["\n"]}  # noqa: RUF012

    def questions(self, task: NeedlesTask, order: QuestionOrder) -> Read:
        return list(_questions(task)), {}

    def render(self, task: NeedlesTask, question: Question, template: Render | None) -> Question:
        # Texts are made when they are asked: all would need gigabytes.
        return replace(question, prompt=request_of(task, question))

    def score_text(self, task: NeedlesTask, question: Question, reply: Reply) -> float:
        return share_found(reply.text, question.data["values"])

    def depth(self, answer: Answer) -> int | None:
        """Return the case's length, with which its id begins."""
        length, _, _ = answer.id.partition("/")
        return int(length) if length.isdecimal() else None

    def metric(self, task: NeedlesTask, laid_out: str | None) -> str:
        return "recall"

    def fit(
        self, name: str, task: NeedlesTask, max_length: int, note: Callable[[str], None]
    ) -> NeedlesTask:
        least = {n: prompt_tokens(task, n) + answer_tokens(task, n) for n in task.lengths}
        lengths = [length for length in task.lengths if least[length] <= max_length]
        if lengths == task.lengths:
            return task
        if not lengths:
            raise UsageError(
                f"no length of the suite '{name}' fits: the shortest needs {min(least.values())} "
                f"tokens, and the served model takes {max_length}",
                where=f"policy key suites.{name}.lengths",
                hint="shorter lengths, fewer max_tokens, or max-model-len up to the model's limit",
            )
        longer = ", ".join(str(length) for length in task.lengths if length not in lengths)
        note(f"{name}: lengths beyond the model's {max_length} tokens are left out: {longer}")
        return task.model_copy(update={"lengths": lengths})

    def local_files(
        self, suite: Suite, identity: QuestionSource, folder: Path | None
    ) -> list[Path]:
        return []


def request_of(task: NeedlesTask, question: Question) -> str:
    """Return a laid-out prompt; EvaluationDataError if the case has changed."""
    data = question.data
    case = build_case(question.id, data["needles"], data["characters"], data["depth"])
    if digest_bytes(case.text.encode()) != data["text_sha256"]:
        raise EvaluationDataError(
            f"the text of {question.id} is not the one that was laid out",
            where="questions.jsonl",
            hint="run with the version of prepare that laid out the questions",
        )
    numbers, verb = ("number", "is") if len(case.values) == 1 else ("numbers", "are")
    lead = f"The special {numbers} for {case.key} {verb}"
    form = PROMPTS[task.prompt_format]
    return form.format(text=case.text, question=data["question"], lead=lead)


def prompt_tokens(task: NeedlesTask, length: int) -> int:
    """Return the largest prompt in tokens."""
    return length - min(answer_tokens(task, length), length // 4)


def answer_tokens(task: NeedlesTask, length: int) -> int:
    """Return the largest answer in tokens; 'model' is a quarter of the length."""
    return task.max_tokens if isinstance(task.max_tokens, int) else length // 4


def _questions(task: NeedlesTask) -> Iterator[Question]:
    for length in task.lengths:
        for number in range(task.cases):
            needles = NEEDLES[number % len(NEEDLES)]
            of_kind = len(range(number % len(NEEDLES), task.cases, len(NEEDLES)))
            tokens = prompt_tokens(task, length) - FRAME_TOKENS
            name = f"{length}/{needles}/{number}"
            row: Row = {
                "length": length,
                "needles": needles,
                "depth": (number // len(NEEDLES) + 0.5) / of_kind,
                "characters": int(CHARACTERS_PER_TOKEN * tokens),
            }
            case = build_case(name, needles, row["characters"], row["depth"])
            count = len(case.values)
            asked = f"What is the special number for {case.key} that the text mentions?"
            if count > 1:
                asked = (
                    f"What are the {count} special numbers for {case.key} that the text mentions? "
                    "List them, separated by commas."
                )
            hidden = [needle(case.key, value) for value in case.values]
            yield Question(
                name,
                # Shown without the text around the numbers.
                " [...] ".join(["", *hidden, ""]).strip() + f"\n\n{asked}",
                group=f"{length} tokens, {needles.replace('_', ' ')}",
                expected=", ".join(case.values),
                data={
                    **row,
                    "question": asked,
                    "key": case.key,
                    "values": list(case.values),
                    "text_sha256": digest_bytes(case.text.encode()),
                },
            )
