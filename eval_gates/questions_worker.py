"""Worker: writes one suite's questions, in their seeded order."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval_gates.clusters import labels_of
from eval_gates.suites.json_lines import FIELDS, read_rows, write_rows
from eval_gates.suites.lm_eval_task import ASKED
from eval_gates.suites.lm_rows import digest_of
from eval_gates.suites.question_source import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder, kind_named
from pipeline.core.errors import EvaluationDataError
from pipeline.core.events import Progress

LARGEST_SHARE_OF_COPIES = 0.05  # MMLU's own is 0.007
# Keys of a row that hold what is asked; of a task of lm-eval, the digest of it.
_ASKS = (ASKED, "prompt", "messages", "server", "continuations")
Rows = list[dict[str, Any]]
Choices = Sequence[tuple[str, float]]
"""Each choice's text and score."""


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write questions.jsonl, each row with an `id`.

    Args:
        spec: suite (what an answer depends on), source, folder (of --eval-data, or of a task's
            file; None for other sources), seed.
    """
    kind = kind_named(spec["suite"]["kind"])
    task = kind.task.model_validate(spec["suite"])
    source = QuestionSource.model_validate(spec["source"])
    folder = Path(spec["folder"]) if spec["folder"] else None
    questions, facts = kind.questions(task, QuestionOrder(source, folder, output, progress))
    rows = [question.to_row() for question in questions]
    choices = facts.pop("choices", {})
    if cluster := task.cluster_by:
        if source.kind == "folder" and folder is not None:
            rows = with_fields(rows, kind.folder_files(folder))
        rows = with_clusters(rows, cluster)
    files = kind.folder_files(folder) if source.kind == "folder" and folder is not None else []
    rows = without_copies(rows, progress, ", ".join(map(str, files)))
    if cluster:
        facts["clusters"] = len({row["cluster"] for row in rows})
    write_rows(output / "questions.jsonl", shuffle(rows, spec["seed"]))
    return {
        "questions": len(rows),
        "source": source.model_dump(),
        "dropped": 0,
        "guessing": guessing(rows, choices),
        "dropped_why": "questions were left out: the package's text of them is not whole",
        **facts,
    }


def without_copies(rows: Rows, progress: Progress, place: str = "") -> Rows:
    """Return the rows without copies, each of which would count as separate evidence.

    Copies within one cluster stay; they count as one value.

    Args:
        place: names of the files, for the error.
    """
    ids = Counter(str(row["id"]) for row in rows)
    name, times = ids.most_common(1)[0] if ids else ("", 1)
    if times > 1:
        raise EvaluationDataError(
            f"{times} questions have the id '{name}'",
            where=f"{place or 'the suite'}, question {name}",
            hint="give each question a separate id, or leave the ids out",
        )
    first: dict[str, str] = {}
    kept, copied = [], ""
    for row, label in zip(rows, labels_of(rows), strict=True):
        content = json.dumps({key: row[key] for key in _ASKS if key in row}, sort_keys=True)
        if first.setdefault(content, label) == label:
            kept.append(row)
        else:
            copied = copied or content
    copies = len(rows) - len(kept)
    if copies > LARGEST_SHARE_OF_COPIES * len(rows):
        raise EvaluationDataError(
            f"{copies} of {len(rows)} questions are copies of others",
            where=f"{place or 'the suite'}, one of these questions: {copied[:200]}",
            hint="each would count as separate evidence: see whether a file lies there twice; "
            "several references of one text belong into one row",
        )
    if copies:
        progress.note(f"{copies} of {len(rows)} questions are copies of others, and left out")
    return kept


def with_fields(rows: Rows, files: list[Path]) -> Rows:
    """Return the rows with all fields of their files, so that any can be a cluster."""
    found = [row for file in files for _, row in read_rows(file)]
    fields = found + [{}] * len(rows)
    return [{**row, FIELDS: {**row, **own}} for row, own in zip(rows, fields, strict=False)]


def with_clusters(rows: Rows, field: str) -> Rows:
    """Return the rows with a key `cluster`, equal for equal values of that field."""
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
    """Return all rows in an order that depends on the seed alone.

    Questions of one cluster stay together; the clusters are shuffled, large and small alike.
    """
    together: dict[str, Rows] = {}
    for row in rows:
        together.setdefault(str(row.get("cluster", row["id"])), []).append(row)
    order = list(together.values())
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    return [row for cluster in order for row in cluster]


def guessing(rows: Sequence[Mapping[str, Any]], choices: Mapping[str, Choices]) -> float:
    """Return the mean score of a guess, or of always giving one answer such as 'A', if higher.

    Each cluster of questions counts as one.

    Args:
        choices: by question's id; empty if answers are not chosen: then guessing scores 0.
    """
    labels = labels_of(rows)
    sizes = Counter(labels)
    by_chance, gained = 0.0, defaultdict[str, float](float)
    for row, label in zip(rows, labels, strict=True):
        given = choices.get(row["id"], ())
        if given:
            weight = 1 / (len(sizes) * sizes[label])
            chance = sum(score for _, score in given) / len(given)
            by_chance += weight * chance
            for text, score in dict(given).items():
                gained[text] += weight * (score - chance)
    return by_chance + max([0.0, *gained.values()])
