"""Worker: writes one suite's questions, in the seeded order in which they are asked.

Runs in the `evaluate` environment, whose packages carry questions and read the Hub's.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_gates.clusters import labels_of
from eval_gates.suites import humaneval, mbpp, mmlu, rouge
from eval_gates.suites.chance_score import guessing
from eval_gates.suites.fixed_task import digest_of
from eval_gates.suites.humaneval import Problem
from eval_gates.suites.json_lines import EXAMPLES_STEM, FOLDER_STEMS, rows_of_files, write_rows
from eval_gates.suites.lm_eval_task import ASKED, FIELDS, lay_out
from pipeline.core.errors import EvaluationDataError, raise_as
from pipeline.core.events import Progress

if TYPE_CHECKING:
    from eval_gates.suites.question_source import QuestionSource

LARGEST_SHARE_OF_COPIES = 0.05  # MMLU's own is 0.007
# Keys of a row that hold what is asked: of documents (of lm-eval: their digest), choices, programs.
_ASKS = (ASKED, "document", "subject", "question", "choices", "request")
Rows = list[dict[str, Any]]
Read = tuple[Rows, dict[str, Any]]  # the questions, and what the record should say of them


@dataclass(frozen=True)
class QuestionOrder:
    """What is to be laid out."""

    suite: dict[str, Any]  # its keys in the policy
    source: QuestionSource
    folder: Path | None  # of --eval-data, or of an lm-eval task's YAML file
    seed: int


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write questions.jsonl, each row with an `id`.

    Args:
        spec: an `QuestionOrder`, as plain data.

    Raises:
        EvaluationDataError: the source has no such questions, or they are malformed.
    """
    order = order_of(spec["suite"], spec["source"], spec["folder"], spec["seed"])
    rows, facts = READERS[order.suite["kind"]](order, progress, output)
    choices = facts.pop("choices", {})
    if cluster := order.suite.get("cluster_by"):
        rows = with_clusters(with_fields(rows, order), cluster)
    rows = without_copies(rows, progress)
    if cluster:
        facts["clusters"] = len({row["cluster"] for row in rows})
    write_rows(output / "questions.jsonl", shuffle(rows, order.seed))
    return {
        "questions": len(rows),
        "source": order.source.model_dump(),
        "dropped": 0,
        "guessing": guessing(rows, choices),
        "dropped_why": "questions were left out: the package's text of them is not whole",
        **facts,
    }


def order_of(
    suite: dict[str, Any], source: dict[str, Any], folder: str | None, seed: int
) -> QuestionOrder:
    """The order in its shapes, whose library the environment has."""
    from eval_gates.suites.question_source import QuestionSource

    found = QuestionSource.model_validate(source)
    return QuestionOrder(suite, found, Path(folder) if folder else None, seed)


def without_copies(rows: Rows, progress: Progress) -> Rows:
    """The rows without copies of those before, each of which would count as evidence of its own.

    Copies within one cluster stay; they count as one value.

    Raises:
        EvaluationDataError: more than a few are copies, as where a file and its copy lie in one
            folder, or an id is there twice.
    """
    ids = Counter(str(row["id"]) for row in rows)
    name, times = ids.most_common(1)[0] if ids else ("", 1)
    if times > 1:
        raise EvaluationDataError(
            f"{times} questions have the id '{name}'",
            where=f"question {name}",
            hint="give each question an id of its own, or leave the ids out",
        )
    first: dict[str, str] = {}
    kept, copied = [], ""
    for row, label in zip(rows, labels_of(rows), strict=True):
        content = content_of(row)
        if first.setdefault(content, label) == label:
            kept.append(row)
        else:
            copied = copied or content
    copies = len(rows) - len(kept)
    if copies > LARGEST_SHARE_OF_COPIES * len(rows):
        raise EvaluationDataError(
            f"{copies} of {len(rows)} questions are copies of others",
            where=f"the suite's questions, one of them: {copied[:200]}",
            hint="each would count as evidence of its own: see whether a file lies there twice; "
            "several references of one text belong into one row",
        )
    if copies:
        progress.note(f"{copies} of {len(rows)} questions are copies of others, and left out")
    return kept


def content_of(row: dict[str, Any]) -> str:
    """What a question asks, whatever its number, its title or the answer that is wanted."""
    return json.dumps({key: row[key] for key in _ASKS if key in row}, sort_keys=True)


def with_fields(rows: Rows, order: QuestionOrder) -> Rows:
    """The rows with all fields that a folder's files give them, so that any can be a cluster."""
    if order.source.kind != "folder" or order.folder is None:
        return rows
    kind = order.suite["kind"]
    found = rows_of_files(order.folder, FOLDER_STEMS[kind], but_not=EXAMPLES_STEM)
    fields = [row for _, row in found] + [{}] * len(rows)
    return [{**row, FIELDS: {**row, **own}} for row, own in zip(rows, fields, strict=False)]


def with_clusters(rows: Rows, field: str) -> Rows:
    """The rows with a key `cluster`, equal where they have the same in that field.

    Raises:
        EvaluationDataError: a question has no such field, or all of them are one cluster.
    """
    missing = next((row for row in rows if field not in row.get(FIELDS, row)), None)
    if missing is not None:
        raise EvaluationDataError(
            f"the questions have no field '{field}' that would say which belong together",
            where=f"policy key 'cluster_by', question {missing['id']}",
            hint=f"fields are: {', '.join(sorted(missing.get(FIELDS, missing)))}",
        )
    found = [
        {
            **{key: value for key, value in row.items() if key != FIELDS},
            "cluster": digest_of({"cluster": row.get(FIELDS, row)[field]})[:16],
        }
        for row in rows
    ]
    if len({row["cluster"] for row in found}) < 2:
        raise EvaluationDataError(
            f"all questions have the same '{field}', so they are one value and show nothing",
            where="policy key 'cluster_by'",
            hint="choose another field, or more questions",
        )
    return found


def shuffle(rows: Rows, seed: int) -> Rows:
    """All rows in an order that the seed alone decides; how many are asked is decided later.

    Questions of one cluster stay together; the clusters are shuffled, large and small alike.
    """
    together: dict[str, Rows] = {}
    for row in rows:
        together.setdefault(str(row.get("cluster", row["id"])), []).append(row)
    order = list(together.values())
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    return [row for cluster in order for row in cluster]


def mmlu_rows(order: QuestionOrder, progress: Progress, output: Path) -> Read:
    """MMLU's questions, each with the examples that its prompt begins with."""
    suite, source, dropped = order.suite, order.source, 0
    if source.kind == "folder" and order.folder:
        questions, pool = mmlu.read_folder(order.folder), mmlu.read_examples(order.folder)
    elif source.kind == "hub":
        questions = hub_rows(source, source.split)
        pool = hub_rows(source, source.shots_split)
    elif source.kind == "builtin":
        questions = pool = mmlu.read_quiz()
    else:
        carried = mmlu.read_builtin()
        questions, dropped = carried.questions, len(carried.skipped)
        pool = questions
    shots = suite["num_fewshot"]
    if source.kind == "packages":
        # One subject has three questions there, and a question is not its own example.
        shots = min(shots, min(Counter(row["subject"] for row in pool).values()) - 1)
        if shots < suite["num_fewshot"]:
            progress.note(
                f"{shots} worked examples instead of {suite['num_fewshot']}: the packages carry "
                "no more"
            )
    rows = mmlu.with_examples(questions, pool, suite["prompt_format"], shots)
    numbered = [{"id": f"{row['subject']}/{n}", **row} for n, row in enumerate(rows)]
    return numbered, {
        "dropped": dropped,
        "choices": mmlu.scored_choices(numbered, suite["prompt_format"]),
    }


def humaneval_rows(order: QuestionOrder, progress: Progress, output: Path) -> Read:
    """HumanEval's problems."""
    return code_rows(order, humaneval.read_problems(), "HumanEval"), {}


def mbpp_rows(order: QuestionOrder, progress: Progress, output: Path) -> Read:
    """MBPP+'s problems, and HumanEval's if wanted; of the Hub's, those that can be judged."""
    source, left_out = order.source, list[str]()
    if source.kind == "folder" and order.folder:
        problems = mbpp.read_folder(order.folder)
    elif source.kind == "packages":
        problems = []
        progress.note("MBPP's problems are out of reach: HumanEval's are asked alone")
    else:
        rows = hub_rows(source, source.split)
        problems, left_out = mbpp.select_usable(rows, str(source.id))
    if order.suite["humaneval"]:
        problems += [mbpp.from_humaneval(problem) for problem in humaneval.read_problems()]
    facts = {
        "dropped": len(left_out),
        "dropped_why": f"problems were left out: {'; '.join(left_out)}",
    }
    return code_rows(order, problems, "MBPP"), facts


def code_rows(order: QuestionOrder, problems: list[Problem], benchmark: str) -> Rows:
    """The problems, all or those that the policy names, each with what the model is sent."""
    named = {problem.task_id: problem for problem in problems}
    wanted = order.suite["problems"]
    unknown = [name for name in wanted if name not in named]
    if unknown:
        raise EvaluationDataError(
            f"{benchmark} has no problem '{unknown[0]}'",
            where=f"policy key suites.{order.suite['kind']}.problems",
            hint=f"ids are {problems[0].task_id} to {problems[-1].task_id}",
        )
    form = order.suite["prompt_format"]
    return [
        {
            "id": problem.task_id,
            **problem._asdict(),
            "request": humaneval.prompt_of(problem, form),
        }
        for problem in ([named[name] for name in wanted] or problems)
    ]


def rouge_rows(order: QuestionOrder, progress: Progress, output: Path) -> Read:
    """Documents with their reference summaries."""
    source = order.source
    if source.kind == "folder" and order.folder:
        documents = rouge.read_folder(order.folder)
    elif source.kind == "hub":
        documents = [
            {"document": row["article"], "references": [row["highlights"]], "title": ""}
            for row in hub_rows(source, source.split)
        ]
    else:
        documents = rouge.read_builtin()
    return [{**row, "id": row.get("id") or f"document/{n}"} for n, row in enumerate(documents)], {}


def lm_eval_rows(order: QuestionOrder, progress: Progress, output: Path) -> Read:
    """The documents of any lm-eval task, by number; what else it needs is laid beside them."""
    suite, source = order.suite, order.source
    is_file = source.kind == "task"
    file = order.folder / Path(suite["task"]).name if order.folder and is_file else None
    laid_out = lay_out(suite, file, source.revision, output)
    return laid_out.rows, laid_out.facts


READERS: dict[str, Callable[[QuestionOrder, Progress, Path], Read]] = {
    "mmlu": mmlu_rows,
    "humaneval": humaneval_rows,
    "mbpp": mbpp_rows,
    "rouge": rouge_rows,
    "lm_eval": lm_eval_rows,
}


def hub_rows(source: QuestionSource, split: str | None) -> Rows:
    """The rows of a Hub dataset at the pinned revision."""
    from datasets import load_dataset

    with raise_as(
        EvaluationDataError,
        "the Hub's dataset cannot be read",
        f"{source.id}, split {split}",
        "try again, or give a folder with --eval-data",
        errors=(OSError, ValueError),
    ):
        dataset = load_dataset(source.id, source.config, split=split, revision=source.revision)
    return [dict(row) for row in dataset]
