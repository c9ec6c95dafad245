"""From a suite's questions to an lm-eval task, and from lm-eval's samples to rows of answers.

Runs in the `evaluate` environment. Every row has `id`, `prompt_sha256`, `answer`, `score` (0 to 1)
and what else the suite knows: of a generated text `unrelated`, its score as the answer to another
question, and `cluster` where the policy puts questions together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eval_gates.chance_baselines import EMPTY, UNRELATED
from eval_gates.clusters import labels_of, partners
from eval_gates.sandbox import Isolation, Program, choose_isolation, run_many
from eval_gates.suites import humaneval, mbpp, mmlu, rouge
from eval_gates.suites.code_extraction import extract_code
from eval_gates.suites.fixed_task import task_of
from eval_gates.suites.json_lines import read_rows
from eval_gates.suites.lm_eval_metrics import Metric, score_of
from pipeline.core.errors import StageError
from pipeline.core.events import Progress

Rows = list[dict[str, Any]]
Suite = dict[str, Any]  # its keys in the policy
ProgramOf = Callable[[humaneval.Problem, str], Program]  # of a problem and an answer's code
RowsOf = Callable[[Rows, Rows, Progress], Rows]
# (text, id of the question that it answered) to its score as the answer to another question
ScoreElsewhere = Callable[[str, str], float]
# lm-eval puts this text where a server gave no answer, and would score it like any other.
NO_ANSWER = "LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER"


@dataclass(frozen=True)
class SuiteTask:
    """One suite, ready to be asked in batches."""

    # Of lm-eval, over all questions; `samples=` takes their numbers in the questions file.
    task: Any
    metric: str  # what `score` is
    rows_of: RowsOf  # (questions, lm-eval's samples of them in the same order, progress) to rows
    requests_per_question: int  # requests that lm-eval makes for each


def suite_task(spec: dict[str, Any]) -> SuiteTask:
    """The suite's task over its questions.

    Args:
        spec: suite (its keys in the policy) and questions (the stage's file).

    Raises:
        EvaluationDataError: an lm-eval task's documents are not those that were laid out.
        SandboxError: programs cannot be isolated as the policy wants.
    """
    questions = [row for _, row in read_rows(Path(spec["questions"]))]
    return SUITES[spec["suite"]["kind"]](spec["suite"], questions, Path(spec["questions"]).parent)


def mmlu_task(suite: Suite, questions: Rows, folder: Path) -> SuiteTask:
    """MMLU; the metric of the cloze form is by length-normalised likelihood."""
    metric = "acc" if suite["prompt_format"] == "letter" else "acc_norm"
    task = task_of(mmlu.task_config(suite["prompt_format"]), questions)
    return SuiteTask(task, metric, partial(mmlu_rows, metric), len(mmlu.LETTERS))


def mmlu_rows(metric: str, questions: Rows, samples: Rows, progress: Progress) -> Rows:
    """`answer` is each choice's log-likelihood."""
    return [
        {
            **common_fields(question, sample),
            "answer": likelihoods(sample),
            "score": float(sample[metric]),
            "subject": question["subject"],
        }
        for question, sample in zip(questions, samples, strict=True)
    ]


def rouge_task(suite: Suite, questions: Rows, folder: Path) -> SuiteTask:
    """Summaries, scored by the policy's metric."""
    metric, others = suite["metric"], partners_of(questions)

    def score_elsewhere(text: str, question: str) -> float:
        return rouge.score(text, list(questions[others[question]]["references"]))[metric]

    task = task_of(rouge.task_config(suite["prompt_format"], suite["max_tokens"]), questions)
    return SuiteTask(task, metric, partial(rouge_rows, metric, score_elsewhere), 1)


def rouge_rows(
    metric: str,
    elsewhere: ScoreElsewhere,
    questions: Rows,
    samples: Rows,
    progress: Progress,
) -> Rows:
    """All metrics are in the row; one of them is its score."""
    return [
        {
            **common_fields(question, sample),
            "answer": texts_of(sample)[0],
            "score": float(sample[metric]),
            UNRELATED: elsewhere(texts_of(sample)[0], question["id"]),
            **{name: float(sample[name]) for name in rouge.METRICS},
        }
        for question, sample in zip(questions, samples, strict=True)
    ]


def partners_of(questions: Rows) -> dict[str, int]:
    """By a question's id, the place of another one, to which its answer says nothing."""
    ids = [question["id"] for question in questions]
    return dict(zip(ids, partners(labels_of(questions)), strict=True))


def code_task(program_of: ProgramOf, suite: Suite, questions: Rows, folder: Path) -> SuiteTask:
    """HumanEval or MBPP, scored by running the programs, isolated as the policy wants."""
    # The questions lie in a stage's folder of the store, so with them goes the store.
    isolation = choose_isolation(suite["sandbox"], hidden=[folder, *folder.parents[:3]])
    samples = suite["samples"]
    config = humaneval.task_config(
        suite["prompt_format"], suite["max_tokens"], samples, suite["temperature"]
    )
    task = task_of({**config, "task": suite["kind"]}, questions, samples)
    rows_of = partial(code_rows, program_of, suite, isolation)
    return SuiteTask(task, f"pass@{suite['k']}", rows_of, samples)


def code_rows(
    program_of: ProgramOf,
    suite: Suite,
    isolation: Isolation,
    questions: Rows,
    samples: Rows,
    progress: Progress,
) -> Rows:
    """Run every answer against its problem's tests; a problem's score is its pass@k.

    `answer`, `code`, `outcome` and `detail` are lists where several answers were drawn.
    """
    fields = humaneval.Problem._fields
    problems = [humaneval.Problem(*(question[f] for f in fields)) for question in questions]
    answers = [texts_of(sample) for sample in samples]
    codes = [
        [
            extract_code(text, problem.prompt, problem.entry_point, suite["prompt_format"])
            for text in texts
        ]
        for problem, texts in zip(problems, answers, strict=True)
    ]
    executions = iter(
        run_many(
            [
                program_of(problem, code)
                for problem, drawn in zip(problems, codes, strict=True)
                for code in drawn
            ],
            seconds=suite["seconds_per_problem"],
            memory_bytes=suite["memory_mb_per_problem"] * 2**20,
            isolation=isolation,
            progress=progress,
        )
    )
    rows = []
    for question, sample, texts, drawn in zip(questions, samples, answers, codes, strict=True):
        ran = [next(executions) for _ in drawn]
        passed = sum(execution.passed for execution in ran)
        rows.append(
            {
                **common_fields(question, sample),
                "answer": unwrap(texts),
                "score": humaneval.pass_at_k(len(ran), passed, suite["k"]),
                "code": unwrap(drawn),
                "outcome": unwrap([execution.outcome for execution in ran]),
                "detail": unwrap([execution.detail for execution in ran]),
                "isolation": isolation.kind,
            }
        )
    return rows


def lm_eval_task(suite: Suite, questions: Rows, folder: Path) -> SuiteTask:
    """A task of lm-eval, scored by one of its metrics."""
    from eval_gates.suites.lm_eval_task import open_task

    opened = open_task(suite, questions, folder)
    others = partners_of(questions)
    places = {question["id"]: place for place, question in enumerate(questions)}

    def score_at(place: int, answer: Any, question: str) -> float:
        found = opened.task.process_results(opened.task.eval_docs[place], [answer])
        return score_of(found.get(opened.metric.name), opened.metric, question)

    def score_uninformed(answer: Any, question: str) -> dict[str, float]:
        return {
            EMPTY: score_at(places[question], "", question),
            UNRELATED: score_at(others[question], answer, question),
        }

    rows_of = partial(lm_eval_rows, opened.metric, opened.task.OUTPUT_TYPE, score_uninformed)
    return SuiteTask(opened.task, opened.metric.label, rows_of, opened.requests_per_question)


def lm_eval_rows(
    metric: Metric,
    output_type: str,
    uninformed: Callable[[Any, str], dict[str, float]],
    questions: Rows,
    samples: Rows,
    progress: Progress,
) -> Rows:
    """`answer` is likelihoods, or the text as it came; then `filtered` is what the filter left.

    Args:
        uninformed: of an answer that was generated, and its question's id, what an empty one
            scores there, and what this one does on another question.
    """
    rows = []
    for question, sample in zip(questions, samples, strict=True):
        row = common_fields(question, sample)
        if output_type == "generate_until":
            row["answer"] = check_text(sample["resps"][0][0], sample)
            row["filtered"] = str(sample["filtered_resps"][0])
            row |= uninformed(sample["filtered_resps"][0], question["id"])
        else:
            row["answer"] = likelihoods(sample)
        row["score"] = score_of(sample.get(metric.name), metric, question["id"])
        rows.append(row)
    return rows


SUITES: dict[str, Callable[[Suite, Rows, Path], SuiteTask]] = {
    "mmlu": mmlu_task,
    "humaneval": partial(code_task, humaneval.program),
    "mbpp": partial(code_task, mbpp.program),
    "rouge": rouge_task,
    "lm_eval": lm_eval_task,
}


def common_fields(question: dict[str, Any], sample: dict[str, Any]) -> dict[str, Any]:
    """What every row has: the question's id and cluster, and the digest of what was sent for it."""
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
