"""MMLU (Hendrycks et al. 2021): 57 subjects, four choices per question.

Its forms are lm-eval's `mmlu` and `mmlu_continuation` (cloze), in which small models are above
chance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from eval_gates.quality_result import GroupReport, report_parts
from eval_gates.rows import Answer, Question, Reply, Score, choose
from eval_gates.statistics.parts import split
from eval_gates.suites.json_lines import TEXT, check_row, read_rows
from eval_gates.suites.sources import HubQuestions, QuestionSource, Row
from eval_gates.suites.suite_kind import QuestionOrder, Read, SuiteKind
from prepare.errors import EvaluationDataError
from recipes.policy import EvalTask

Form = Literal["letter", "cloze"]

LETTERS = "ABCD"
EXAMPLES_STEM = "mmlu_dev"  # worked examples, which are not asked
OTHER_STEM = "mmlu_pro"  # the questions of another suite
DATA = Path(__file__).parents[1] / "data"
QUIZ_FILE = DATA / "quiz.jsonl"
DEV_FILE = DATA / "mmlu_dev.jsonl"
PACKAGED_SHOTS = 2  # of the development questions
UNKNOWN_GROUP = "not in MMLU"  # a folder may hold subjects of the user's own

_FIELDS = (
    "each line needs subject, question, choices (four texts), answer (0 to 3, or a letter A to D)"
)
_DESCRIPTIONS: dict[Form, str] = {
    "letter": "The following are multiple choice questions (with answers) about {}.\n\n",
    "cloze": "The following are questions (with answers) about {}.\n\n",
}


class MmluTask(EvalTask):
    """Questions with four choices."""

    kind: Literal["mmlu"] = "mmlu"
    prompt_format: Form = Field(
        "letter", description="letter: answer A-D; cloze: the answer's text (for small models)"
    )
    num_fewshot: int = Field(5, ge=0, le=5)


@cache
def subject_groups() -> dict[str, list[str]]:
    """Return 57 subjects in lm-eval's four groups."""
    groups: dict[str, list[str]] = json.loads((DATA / "mmlu_groups.json").read_text("utf-8"))  # noqa: TID251
    return groups


def read_development() -> list[Row]:
    """Return the development questions."""
    return [_question(row, place) for place, row in read_rows(DEV_FILE)]


def lay_out(rows: list[Row], pool: list[Row], form: Form, shots: int) -> list[Question]:
    """Return the questions, each with its subject's first `shots` of the pool, as in lm-eval.

    Form `letter` scores A to D, form `cloze` the texts.
    """
    questions = []
    for number, row in enumerate(rows):
        key = row["answer"]
        subject = row["subject"]
        shown = "".join(_example(example, form) for example in _examples_for(row, pool, shots))
        about = _DESCRIPTIONS[form].format(subject.replace("_", " "))
        questions.append(
            Question(
                f"{subject}/{number}",
                about + shown + _ask(row, form),
                continuations=tuple(f" {text}" for text in _texts(row, form)),
                group=subject,
                expected=f"{LETTERS[key]}. {row['choices'][key]}",
                data=row,
            )
        )
    return questions


def _texts(row: Mapping[str, Any], form: Form) -> Sequence[str]:
    return LETTERS if form == "letter" else row["choices"]


def _question(row: dict[str, Any], place: str) -> Row:
    choice = {"type": "string", "minLength": 1}
    four = {"type": "array", "minItems": 4, "maxItems": 4, "items": choice}
    key = {"enum": [0, 1, 2, 3, *LETTERS]}
    check_row(row, place, _FIELDS, subject=TEXT, question=TEXT, choices=four, answer=key)
    answer = row["answer"]
    answer = LETTERS.index(answer) if isinstance(answer, str) else int(answer)
    return {**{name: row[name] for name in ("subject", "question", "choices")}, "answer": answer}


def _examples_for(question: Row, pool: list[Row], shots: int) -> list[Row]:
    keys = ("question", "choices")
    others = [
        example
        for example in (pool if shots else ())
        if example["subject"] == question["subject"]
        and any(example[k] != question[k] for k in keys)
    ]
    if len(others) < shots:
        raise EvaluationDataError(
            f"{shots} worked examples were asked, but {question['subject']} has {len(others)}",
            where=f"question {question['question'][:60]!r}",
            hint=f"set num_fewshot to {len(others)} in the policy, or give a folder with "
            "mmlu_dev.jsonl",
        )
    return others[:shots]


def _ask(question: Row, form: Form) -> str:
    text = question["question"].strip()
    if form == "cloze":
        return f"Question: {text}\nAnswer:"
    pairs = zip(LETTERS, question["choices"], strict=True)
    return "\n".join([text, *(f"{letter}. {choice}" for letter, choice in pairs), "Answer:"])


def _example(example: Row, form: Form) -> str:
    return f"{_ask(example, form)} {_texts(example, form)[example['answer']]}\n\n"


class Mmlu(SuiteKind[MmluTask]):
    """Multiple choice over 57 subjects, scored by log-likelihood."""

    task = MmluTask
    sources = ("eval-data", "hub")
    folder_stem = "mmlu"
    examples_stem = EXAMPLES_STEM
    other_stem = OTHER_STEM
    hub = HubQuestions(
        QuestionSource(kind="hub", id="cais/mmlu", config="all", split="test", shots_split="dev"),
        14_042,
    )
    packaged = 280
    packaged_file = DEV_FILE
    carried = QUIZ_FILE
    guessing = 0.25  # at least: keys may be unbalanced
    benchmark = hub.benchmark("MMLU")

    def questions(self, task: MmluTask, order: QuestionOrder) -> Read:
        source = order.source
        shots = task.num_fewshot
        if source.kind == "packages":
            questions = read_development()
            # One subject has only three questions, and a question is not its own example.
            shots = min(shots, PACKAGED_SHOTS)
            if shots < task.num_fewshot:
                order.progress.note(
                    f"{shots} worked examples instead of {task.num_fewshot}: the source "
                    "'packages' has no more"
                )
        else:
            questions = self._rows(order)
        is_split = source.kind in ("folder", "hub")
        pool = self._rows(order, examples=True) if is_split else questions
        laid_out = lay_out(questions, pool, task.prompt_format, shots)
        choices = {
            question.id: [
                (text, float(number == question.data["answer"]))
                for number, text in enumerate(_texts(question.data, task.prompt_format))
            ]
            for question in laid_out
        }
        return laid_out, {"choices": choices}

    def _rows(self, order: QuestionOrder, *, examples: bool = False) -> list[Row]:
        rows = self.read(order.source, order.folder, examples=examples)
        is_known = order.source.kind == "hub"
        return [row if is_known else _question(row, place) for place, row in rows]

    def score(self, task: MmluTask, question: Question, replies: Sequence[Reply]) -> Score:
        reply = replies[0]
        values = self.choice_values(
            task, [value for value, _ in reply.values], question.data["choices"]
        )
        is_right = choose(values) == question.data["answer"] and not reply.is_unnamed
        return Score(float(is_right))

    def metric(self, task: MmluTask, laid_out: str | None) -> str:
        return "acc" if task.prompt_format == "letter" else "acc_norm"

    def choice_values(
        self, task: MmluTask, likelihoods: Sequence[float], choices: Sequence[str]
    ) -> list[float]:
        """Return log-likelihoods, per character in the cloze form."""
        if task.prompt_format == "cloze" and len(choices) == len(likelihoods):
            return [value / len(text) for value, text in zip(likelihoods, choices, strict=True)]
        return list(likelihoods)

    def groups(self, baseline: Sequence[Answer], candidate: Sequence[Answer]) -> list[GroupReport]:
        groups = subject_groups()
        of = {subject: group for group, subjects in groups.items() for subject in subjects}

        def group_of(row: Answer) -> str:
            return of.get(row.group, UNKNOWN_GROUP)

        order = (*groups, UNKNOWN_GROUP)
        return [
            *report_parts(split(baseline, candidate, group_of), "union", order),
            *report_parts(split(baseline, candidate, lambda row: row.group), "part", tuple(of)),
        ]
