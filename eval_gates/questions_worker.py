"""Worker: writes one suite's questions, in their seeded order."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eval_gates.clusters import labels_of
from eval_gates.rows import Question
from eval_gates.suites.json_lines import FIELDS, read_rows, write_rows
from eval_gates.suites.lm_eval_task import ASKED
from eval_gates.suites.lm_rows import digest_of
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder, kind_named
from prepare.errors import EvaluationDataError
from prepare.events import Progress

LARGEST_SHARE_OF_COPIES = 0.05  # MMLU's own is 0.007
# What is asked; of a task of lm-eval, the digest of it.
_ASKS = ("prompt", "messages", "server", "continuations")
Questions = list[Question]
Choices = Sequence[tuple[str, float]]
"""Each choice's text and score."""


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write questions.jsonl.

    `spec` has suite, source, folder (of --eval-data or a task's file), seed.
    """
    kind = kind_named(spec["suite"]["kind"])
    task = kind.task.model_validate(spec["suite"])
    source = QuestionSource.model_validate(spec["source"])
    folder = Path(spec["folder"]) if spec["folder"] else None
    questions, facts = kind.questions(task, QuestionOrder(source, folder, output, progress))
    choices = facts.pop("choices", {})
    files = kind.folder_files(folder) if source.kind == "folder" and folder is not None else []
    if cluster := task.cluster_by:
        questions = with_clusters(with_fields(questions, files) if files else questions, cluster)
    questions = without_copies(questions, progress, ", ".join(map(str, files)))
    if cluster:
        facts["clusters"] = len({each.cluster for each in questions})
    rows = [each.to_row() for each in shuffle(questions, spec["seed"])]
    write_rows(output / "questions.jsonl", rows)
    return {
        "questions": len(questions),
        "source": source.model_dump(),
        "dropped": 0,
        "guessing": guessing(questions, choices),
        "dropped_why": "questions were left out: the package's text of them is not whole",
        **facts,
    }


def without_copies(questions: Questions, progress: Progress, place: str = "") -> Questions:
    """Return the questions without copies, which would count as separate evidence.

    Copies within one cluster stay.
    """
    ids = Counter(each.id for each in questions)
    name, times = ids.most_common(1)[0] if ids else ("", 1)
    if times > 1:
        raise EvaluationDataError(
            f"{times} questions have the id '{name}'",
            where=f"{place or 'the suite'}, question {name}",
            hint="give each question a separate id, or leave the ids out",
        )
    first: dict[str, str] = {}
    kept = []
    copied = ""
    for each, label in zip(questions, labels_of(questions), strict=True):
        asked = [each.data.get(ASKED), *(getattr(each, key) for key in _ASKS)]
        content = json.dumps([part for part in asked if part], sort_keys=True)
        if first.setdefault(content, label) == label:
            kept.append(each)
        else:
            copied = copied or content
    copies = len(questions) - len(kept)
    if copies > LARGEST_SHARE_OF_COPIES * len(questions):
        raise EvaluationDataError(
            f"{copies} of {len(questions)} questions are copies of others",
            where=f"{place or 'the suite'}, one of these questions: {copied[:200]}",
            hint="each would count as separate evidence: see whether a file lies there twice; "
            "several references of one text belong into one row",
        )
    if copies:
        progress.note(f"{copies} of {len(questions)} questions are copies of others, and left out")
    return kept


def with_fields(questions: Questions, files: list[Path]) -> Questions:
    """Return the questions with all fields of their files."""
    found = [row for file in files for _, row in read_rows(file)]
    fields = found + [{}] * len(questions)
    return [
        replace(each, data={**each.data, FIELDS: {**each.to_row(), **own}})
        for each, own in zip(questions, fields, strict=False)
    ]


def with_clusters(questions: Questions, field: str) -> Questions:
    """Return the questions clustered by equal values of that field."""
    found = []
    for each in questions:
        fields = each.data.get(FIELDS) or each.to_row()
        if field not in fields:
            raise EvaluationDataError(
                f"the questions have no field '{field}' that would say which belong together",
                where=f"policy key 'cluster_by', question {each.id}",
                hint=f"fields are: {', '.join(sorted(fields))}",
            )
        label = digest_of({"cluster": fields[field]})[:16]
        data = {key: value for key, value in each.data.items() if key != FIELDS}
        found.append(replace(each, cluster=label, data=data))
    if len({each.cluster for each in found}) < 2:
        raise EvaluationDataError(
            f"all questions have the same '{field}', so they are one value and show nothing",
            where="policy key 'cluster_by'",
            hint="choose another field, or more questions",
        )
    return found


def shuffle(questions: Questions, seed: int) -> Questions:
    """Return the questions in an order that depends on the seed alone.

    Clusters stay together.
    """
    together: dict[str, Questions] = {}
    for each in questions:
        together.setdefault(each.cluster or each.id, []).append(each)
    order = list(together.values())
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    return [each for cluster in order for each in cluster]


def guessing(questions: Sequence[Question], choices: Mapping[str, Choices]) -> float:
    """Return the mean score of a guess, or of one constant answer, if higher.

    Each cluster counts as one. `choices` are by question's id.
    """
    labels = labels_of(questions)
    sizes = Counter(labels)
    by_chance = 0.0
    gained = defaultdict[str, float](float)
    for each, label in zip(questions, labels, strict=True):
        given = choices.get(each.id, ())
        if given:
            weight = 1 / (len(sizes) * sizes[label])
            chance = sum(score for _, score in given) / len(given)
            by_chance += weight * chance
            for text, score in dict(given).items():
                gained[text] += weight * (score - chance)
    return by_chance + max([0.0, *gained.values()])
