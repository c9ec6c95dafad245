"""Questions about an image, answered by one of given choices: scikit-learn's digits, or a user's.

An image travels with its question: the row holds it as a data URI, and the server gets it through
its chat API.
"""

from __future__ import annotations

import re
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from eval_gates.suites.answer_rows import common_fields, texts_of
from eval_gates.suites.fixed_task import task_of
from eval_gates.suites.generation import (
    GeneratingTask,
    generated_fields,
    mean,
    score_answers,
    task_config,
)
from eval_gates.suites.json_lines import rows_of_files, text_of
from eval_gates.suites.question_source import QuestionSource
from eval_gates.suites.suite_kind import (
    ChatNeed,
    QuestionOrder,
    Read,
    Row,
    Rows,
    SourceLookup,
    SuiteKind,
    SuiteTask,
)
from pipeline.core.digest import digest_json
from pipeline.core.errors import EvaluationDataError, raise_as
from pipeline.core.events import Progress
from pipeline.core.untrusted.file import MEBIBYTE, read_regular
from recipes.generation import MaxTokens
from recipes.policy import Source, Suite

STEM = "images"
DIGITS = 1797
SCALE = 8  # a digit has 8 x 8 values; models cut images into patches of 14 pixels or more
QUESTION = "Which digit does the image show?"
PROMPT = "{question}\nAnswer with one of these and nothing else: {choices}."
MEDIA = {".jpeg": "jpeg", ".jpg": "jpeg", ".png": "png", ".webp": "webp"}
MAX_BYTES, MAX_BYTES_TOGETHER = 4 * MEBIBYTE, 256 * MEBIBYTE
_FIELDS = (
    f"each line needs image (a file of the folder, {', '.join(MEDIA)}), question (a text), "
    "choices (a list of two texts or more) and answer (one of them)"
)


class ImagesTask(GeneratingTask):
    """Images with questions."""

    kind: Literal["images"] = "images"
    max_tokens: MaxTokens = 16

    @model_validator(mode="after")
    def _asked_by_chat(self) -> ImagesTask:
        if self.prompt_format == "completion":
            raise ValueError("images are asked by the chat API: take 'prompt_format: chat'")
        if self.max_tokens == "model":
            raise ValueError(
                "the tokens of an image are known to the server alone, so 'max_tokens: model' has "
                "no value: write a number"
            )
        return self


class ImagesSuite(ImagesTask, Suite):
    """Questions about images; an answer counts that names the right choice and no other."""

    batch: int = Field(64, ge=1, le=1_000_000, description="questions between two looks")
    sources: list[Source] = Field(default=["eval-data", "packages"])


class Images(SuiteKind[ImagesTask]):
    """The suite `images`."""

    task, policy = ImagesTask, ImagesSuite
    folder_stem, packaged = STEM, DIGITS

    def read(self, task: ImagesTask, order: QuestionOrder) -> Read:
        rows = list(_rows_of_folder(order.folder) if order.folder else _digits())
        if sum(len(row["image"]) for row in rows) > MAX_BYTES_TOGETHER:
            raise EvaluationDataError(
                f"the images have more than {MAX_BYTES_TOGETHER // MEBIBYTE} MiB together",
                where=str(order.folder),
                hint="make them smaller: models reduce large images anyway",
            )
        choices = {
            row["id"]: [(choice, float(choice == row["answer"])) for choice in row["choices"]]
            for row in rows
        }
        return rows, {"choices": choices}

    def open(self, task: ImagesTask, questions: Rows, folder: Path) -> SuiteTask:
        config = task_config(task, "{{question}}", [])
        asked = task_of(config, questions, task.samples, _chat_request)
        return SuiteTask(asked, self.metric(task, None), partial(answer_rows, task), task.samples)

    def chat_need(self, task: ImagesTask) -> ChatNeed:
        return ChatNeed.IMAGES

    def metric(self, task: ImagesTask, laid_out: str | None) -> str:
        return "exact_match"

    def prompt(self, task: ImagesTask, question: Row) -> str:
        return str(question["question"])

    def expected(self, task: ImagesTask, question: Row) -> str | None:
        return question.get("answer")

    def _identify(
        self, source: str, suite: Suite, lookup: SourceLookup
    ) -> tuple[QuestionSource | None, Path | None]:
        identity, folder = super()._identify(source, suite, lookup)
        if identity is not None and folder is not None:
            found = rows_of_files(folder, STEM)
            images = [lookup.digest_of(_image_file(folder, row, place)) for place, row in found]
            identity = QuestionSource(kind="folder", digest=digest_json([identity.digest, images]))
        return identity, folder


def answer_rows(task: ImagesTask, questions: Rows, samples: Rows, progress: Progress) -> Rows:
    """Return rows whose score is the share of the samples that choose the right answer."""
    rows = []
    for question, sample in zip(questions, samples, strict=True):

        def score(text: str, question: Row = question) -> float:
            return float(chosen(text, question["choices"]) == question["answer"])

        rows.append(
            {
                **common_fields(question, sample),
                **generated_fields(task, sample),
                "score": mean(score_answers(task, texts_of(sample), score)),
            }
        )
    return rows


def chosen(answer: str, choices: Sequence[str]) -> str | None:
    """Return the only choice that the answer names, in whole words; None for none or several.

    In `dark red` the choice `red` is not named if `dark red` is another.
    """
    named, left = [], answer.casefold()
    for choice in sorted(choices, key=len, reverse=True):
        left, times = re.subn(rf"(?<!\w){re.escape(choice.casefold())}(?!\w)", " ", left)
        named += [choice] if times else []
    return named[0] if len(named) == 1 else None


def png(pixels: Sequence[Sequence[int]]) -> bytes:
    """Return the PNG file of gray values (0 to 255), row by row; `evaluate` has no such library."""
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 0, 0, 0, 0),
        b"IDAT": zlib.compress(b"".join(b"\0" + bytes(row) for row in pixels)),
        b"IEND": b"",
    }
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts.items()
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chat_request(question: Row) -> dict[str, Any]:
    parts = [
        {"type": "image_url", "image_url": {"url": question["image"]}},
        {"type": "text", "text": question["question"]},
    ]
    return {"messages": [{"role": "user", "content": parts}]}


def _row(name: str, image: str, question: str, choices: list[str], answer: str) -> Row:
    asked = PROMPT.format(question=question, choices=", ".join(choices))
    row = {"id": name, "image": image, "question": asked, "choices": choices}
    return {**row, "answer": answer}


def _digits() -> Iterator[Row]:
    """Yield the test part of UCI's handwritten digits (Alpaydin and Kaynak 1998), ink black."""
    from sklearn.datasets import load_digits

    found = load_digits()
    for number, (values, digit) in enumerate(zip(found.images, found.target, strict=True)):
        gray = [
            [255 - round(value * 255 / 16) for value in row for _ in range(SCALE)] for row in values
        ]
        image = png([row for row in gray for _ in range(SCALE)])
        choices = [str(n) for n in range(10)]
        yield _row(f"digit/{number}", _data_uri(image, "png"), QUESTION, choices, str(digit))


def _rows_of_folder(folder: Path) -> Iterator[Row]:
    for number, (place, row) in enumerate(rows_of_files(folder, STEM)):
        file = _image_file(folder, row, place)
        with raise_as(EvaluationDataError, "an image cannot be read", file, "replace the file"):
            content = read_regular(file, MAX_BYTES)
        yield _row(
            str(row.get("id") or f"image/{number}"),
            _data_uri(content, MEDIA[file.suffix.lower()]),
            text_of(row, "question", place, _FIELDS),
            *_choices(row, place),
        )


def _image_file(folder: Path, row: Row, place: str) -> Path:
    name = text_of(row, "image", place, _FIELDS)
    file = folder / name
    with raise_as(
        EvaluationDataError, "'image' names no file", place, _FIELDS, errors=(OSError, ValueError)
    ):
        inside = file.resolve(strict=True).is_relative_to(folder.resolve())
    if not inside or file.suffix.lower() not in MEDIA:
        problem = "has another format" if inside else "lies outside of the folder"
        raise EvaluationDataError(f"the image {name} {problem}", where=place, hint=_FIELDS)
    return file


def _choices(row: Row, place: str) -> tuple[list[str], str]:
    choices, answer = row.get("choices"), row.get("answer")
    if (
        not isinstance(choices, list)
        or not all(isinstance(choice, str) and choice.strip() for choice in choices)
        or len({choice.casefold() for choice in choices}) != len(choices)
        or len(choices) < 2
        or answer not in choices
    ):
        raise EvaluationDataError(
            "'choices' is not a list of different texts with 'answer' among them",
            where=place,
            hint=_FIELDS,
        )
    return choices, str(answer)


def _data_uri(content: bytes, media: str) -> str:
    return f"data:image/{media};base64,{b64encode(content).decode()}"
