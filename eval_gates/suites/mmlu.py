"""MMLU (Hendrycks et al. 2021): 57 subjects, four choices per question.

Questions come from a folder, the development questions in lm-eval, or the project's own easy ones.
The letter form has the exact prompt of lm-eval's `mmlu` tasks. The cloze form has that of
`mmlu_continuation`, in which small models are above chance.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from eval_gates.gate_report import GroupReport
from eval_gates.rows import Answer, Question, Reply, choose
from eval_gates.suites.group_scores import report_groups
from eval_gates.suites.json_lines import package_file, read_rows, rows_of_files, text_of
from eval_gates.suites.mmlu_subjects import GROUP_OF, GROUPS, UNKNOWN_GROUP
from eval_gates.suites.question_source import QuestionSource, hub_rows
from eval_gates.suites.suite_kind import HubQuestions, QuestionOrder, Read, Row, SuiteKind
from pipeline.core.errors import EvaluationDataError
from recipes.policy import EvalTask, Source, Suite

Form = Literal["letter", "cloze"]

LETTERS = "ABCD"
EXAMPLES_STEM = "mmlu_dev"  # worked examples, which are not asked
OTHER_STEM = "mmlu_pro"  # the questions of another suite
QUIZ_FILE = Path(__file__).parents[1] / "data" / "quiz.jsonl"

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


class MmluSuite(MmluTask, Suite):
    """Multiple choice over 57 subjects, scored by log-likelihood."""

    sources: list[Source] = Field(default=["eval-data", "hub", "packages"])


class BuiltinQuestions(NamedTuple):
    """Questions that were parsed with certainty, and why others were not."""

    questions: list[Row]
    skipped: list[str]


def read_folder(folder: Path) -> list[Row]:
    """Return the questions of `mmlu*.jsonl[.gz]` (without `mmlu_dev*`), in the files' order.

    Each has `subject`, `question`, `choices` (four strings) and `answer` (0 to 3).
    """
    rows = rows_of_files(folder, "mmlu", but_not=(EXAMPLES_STEM, OTHER_STEM))
    questions = [_question(row, place) for place, row in rows]
    if not questions:
        raise EvaluationDataError(
            "there are no MMLU questions",
            where=str(folder),
            hint=f"put them in mmlu_test.jsonl or mmlu_test.jsonl.gz there; {_FIELDS}",
        )
    return questions


def read_examples(folder: Path) -> list[Row]:
    """Return the development questions of `mmlu_dev*.jsonl[.gz]`; may be none."""
    return [_question(row, place) for place, row in rows_of_files(folder, EXAMPLES_STEM)]


def read_quiz() -> list[Row]:
    """Return the project's easy questions of general knowledge."""
    return [_question(row, place) for place, row in read_rows(QUIZ_FILE)]


def read_builtin() -> BuiltinQuestions:
    """Return MMLU's development questions from the installed lm-eval."""
    path = package_file("lm_eval", "tasks", "mmlu", "flan_cot_fewshot", "_cot_prompts.json")
    if path is not None:
        return parse_cot_prompts(json.loads(path.read_text(encoding="utf-8")))
    raise EvaluationDataError(
        "MMLU's development questions are not installed here",
        where="lm_eval/tasks/mmlu/flan_cot_fewshot/_cot_prompts.json",
        hint="run in the evaluate environment (prepare doctor --build evaluate), or give "
        "--eval-data",
    )


def parse_cot_prompts(prompts: dict[str, str]) -> BuiltinQuestions:
    """Parse MMLU's development questions from lm-eval's chain-of-thought prompts.

    A valid item has each of (A) to (D) exactly once, in order, no (E), and one sentence 'The answer
    is (X).'; other items are skipped.

    Args:
        prompts: by subject, a description and then items `Q: question, choices, A: reasoning`.
    """
    questions: list[Row] = []
    skipped: list[str] = []
    for subject, text in prompts.items():
        for number, item in enumerate(re.split(r"\n+Q: ", text)[1:], start=1):
            question, problem = _parse_item(subject, item)
            if question is None:
                skipped.append(f"{subject}, item {number}: {problem}")
            else:
                questions.append(question)
    return BuiltinQuestions(questions, skipped)


def lay_out(rows: list[Row], pool: list[Row], form: Form, shots: int) -> list[Question]:
    """Return the questions, each with the worked examples of its subject.

    They are the subject's first `shots` of the pool, as in lm-eval. Form `letter` scores the
    letters A to D, form `cloze` the choices' texts.
    """
    by_subject: dict[str, list[Row]] = {}
    for example in pool:
        by_subject.setdefault(example["subject"], []).append(example)
    return [
        Question(
            f"{row['subject']}/{number}",
            "".join(
                [
                    _DESCRIPTIONS[form].format(row["subject"].replace("_", " ")),
                    *(_examples_for(row, by_subject, form, shots) if shots else ""),
                    _ask(row, form),
                ]
            ),
            continuations=tuple(
                f" {text}" for text in (LETTERS if form == "letter" else row["choices"])
            ),
            expected=f"{LETTERS[row['answer']]}. {row['choices'][row['answer']]}",
            data=row,
        )
        for number, row in enumerate(rows)
    ]


def scored_choices(questions: list[Question], form: Form) -> dict[str, list[tuple[str, float]]]:
    """Return each choice in its scored form, and whether it is correct, by question's id."""
    return {
        question.id: [
            (text, float(number == question.data["answer"]))
            for number, text in enumerate(LETTERS if form == "letter" else question.data["choices"])
        ]
        for question in questions
    }


def _question(row: dict[str, Any], place: str) -> Row:
    choices = row.get("choices")
    if (
        not isinstance(choices, list)
        or len(choices) != len(LETTERS)
        or not all(isinstance(choice, str) and choice for choice in choices)
    ):
        raise EvaluationDataError("'choices' is not four texts", where=place, hint=_FIELDS)
    return {
        "subject": text_of(row, "subject", place, _FIELDS),
        "question": text_of(row, "question", place, _FIELDS),
        "choices": choices,
        "answer": _answer(row.get("answer"), place),
    }


def _answer(answer: Any, place: str) -> int:
    if isinstance(answer, str) and len(answer) == 1 and answer in LETTERS:
        return LETTERS.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(LETTERS):
        return answer
    raise EvaluationDataError(
        f"'answer' is {answer!r}, which names none of the four choices", where=place, hint=_FIELDS
    )


def _group_of(row: Mapping[str, Any]) -> str:
    return GROUP_OF.get(row["subject"], UNKNOWN_GROUP)


def _examples_for(question: Row, by_subject: dict[str, list[Row]], form: Form, shots: int) -> str:
    subject = question["subject"]
    others = [
        example
        for example in by_subject.get(subject, [])
        if (example["question"], example["choices"]) != (question["question"], question["choices"])
    ]
    if len(others) < shots:
        raise EvaluationDataError(
            f"{shots} worked examples were asked, but {subject} has {len(others)}",
            where=f"question {question['question'][:60]!r}",
            hint=f"set num_fewshot to {len(others)} in the policy, or give a folder with "
            "mmlu_dev.jsonl",
        )
    return "".join(_example(example, form) for example in others[:shots])


def _ask(question: Row, form: Form) -> str:
    if form == "cloze":
        return f"Question: {question['question'].strip()}\nAnswer:"
    listed = [
        f"{letter}. {text}" for letter, text in zip(LETTERS, question["choices"], strict=True)
    ]
    return "\n".join([question["question"].strip(), *listed, "Answer:"])


def _example(example: Row, form: Form) -> str:
    number = example["answer"]
    answer = LETTERS[number] if form == "letter" else example["choices"][number]
    return f"{_ask(example, form)} {answer}\n\n"


def _parse_item(subject: str, item: str) -> tuple[Row | None, str]:
    asked, separator, reasoning = item.partition("\nA: ")
    if not separator or "\nA: " in reasoning:
        return None, "not one question with one answer"
    # In abstract_algebra the reasoning of item 1 was cut at a form feed and runs into item 2.
    if "\nactorial{" in asked:
        return None, "the end of another item's reasoning is in it"
    if "(E)" in asked or any(asked.count(f"({letter})") != 1 for letter in LETTERS):
        return None, "not exactly the choices (A), (B), (C) and (D)"
    parts = re.fullmatch(r"(.+)\n\(A\)(.+)\(B\)(.+)\(C\)(.+)\(D\)(.+)", asked, re.DOTALL)
    if parts is None or not all(part.strip() for part in parts.groups()):
        return None, "the choices are not in order on a line of their own"
    answers = re.findall(r"[Tt]he answer is \(([A-D])\)", reasoning)
    if len(answers) != 1:
        return None, f"{len(answers)} sentences name the answer"
    question, *choices = (part.strip() for part in parts.groups())
    return {
        "subject": subject,
        "question": question,
        "choices": choices,
        "answer": LETTERS.index(answers[0]),
    }, ""


class Mmlu(SuiteKind[MmluTask]):
    """The suite `mmlu`."""

    task, policy = MmluTask, MmluSuite
    folder_stem, examples_stem, other_stem = "mmlu", EXAMPLES_STEM, OTHER_STEM
    hub = HubQuestions(
        QuestionSource(kind="hub", id="cais/mmlu", config="all", split="test", shots_split="dev"),
        14_042,
    )
    packaged, carried = 280, QUIZ_FILE
    guessing = 0.25  # at least: keys may be unbalanced
    benchmark = hub.benchmark("MMLU")

    def questions(self, task: MmluTask, order: QuestionOrder) -> Read:
        source, dropped = order.source, 0
        if source.kind == "folder" and order.folder:
            questions, pool = read_folder(order.folder), read_examples(order.folder)
        elif source.kind == "hub":
            questions = hub_rows(source, source.split)
            pool = hub_rows(source, source.shots_split)
        elif source.kind == "builtin":
            questions = pool = read_quiz()
        else:
            carried = read_builtin()
            questions, dropped = carried.questions, len(carried.skipped)
            pool = questions
        shots = task.num_fewshot
        if source.kind == "packages":
            # One subject has three questions there, and a question is not its own example.
            shots = min(shots, min(Counter(row["subject"] for row in pool).values()) - 1)
            if shots < task.num_fewshot:
                order.progress.note(
                    f"{shots} worked examples instead of {task.num_fewshot}: the packages carry "
                    "no more"
                )
        laid_out = lay_out(questions, pool, task.prompt_format, shots)
        choices = scored_choices(laid_out, task.prompt_format)
        return laid_out, {"dropped": dropped, "choices": choices}

    def score(self, task: MmluTask, question: Question, replies: Sequence[Reply]) -> Answer:
        reply, subject = replies[0], {"subject": question.data["subject"]}
        values = self.choice_values(
            task, [value for value, _ in reply.values], question.data["choices"]
        )
        is_right = choose(values) == question.data["answer"] and not reply.is_unnamed
        return {"score": float(is_right), **subject}

    def metric(self, task: MmluTask, laid_out: str | None) -> str:
        return "acc" if task.prompt_format == "letter" else "acc_norm"

    def output_type(self, task: MmluTask) -> str:
        return "multiple_choice" if task.prompt_format == "letter" else "loglikelihood"

    def choice_values(
        self, task: MmluTask, likelihoods: Sequence[float], choices: Sequence[str]
    ) -> list[float]:
        """Return log-likelihoods; per character of the choice's text in the cloze form."""
        if task.prompt_format == "cloze" and len(choices) == len(likelihoods):
            return [value / len(text) for value, text in zip(likelihoods, choices, strict=True)]
        return list(likelihoods)

    def groups(
        self, baseline: Iterable[Mapping[str, Any]], candidate: Iterable[Mapping[str, Any]]
    ) -> list[GroupReport]:
        rows = list(baseline), list(candidate)
        named = (*GROUPS, UNKNOWN_GROUP)
        return [
            *report_groups(*rows, _group_of, named, is_subject=False),
            *report_groups(*rows, lambda row: str(row["subject"]), tuple(GROUP_OF)),
        ]
