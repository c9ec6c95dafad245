"""Worker: writes one suite's questions, in their seeded order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval_gates.answer_log import QUESTIONS_FILE
from eval_gates.clusters import labels_of
from eval_gates.question_set import judged_apart, shuffle
from eval_gates.rows import Question
from eval_gates.suites.json_lines import write_rows
from eval_gates.suites.sources import QuestionSource
from eval_gates.suites.suite_kind import QuestionOrder, kind_named
from prepare.events import Progress

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
    questions = judged_apart(kind, task, questions, files, progress.note)
    if task.cluster_by:
        facts["clusters"] = len({question.cluster for question in questions})
    ordered = shuffle(questions, spec["seed"])
    write_rows(output / QUESTIONS_FILE, [question.to_row() for question in ordered])
    return {
        "questions": len(questions),
        "source": source.model_dump(),
        "dropped": 0,
        "guessing": guessing(questions, choices),
        "dropped_why": "questions were left out: the package's text of them is not whole",
        **facts,
    }


def guessing(questions: Sequence[Question], choices: Mapping[str, Choices]) -> float:
    """Return the mean score of a guess, or of one constant answer, if higher.

    Each cluster counts as one. `choices` are by question's id.
    """
    labels = labels_of(questions)
    sizes = Counter(labels)
    by_chance = 0.0
    gained = defaultdict[str, float](float)
    for question, label in zip(questions, labels, strict=True):
        given = choices.get(question.id, ())
        if given:
            weight = 1 / (len(sizes) * sizes[label])
            chance = sum(score for _, score in given) / len(given)
            by_chance += weight * chance
            for text, score in dict(given).items():
                gained[text] += weight * (score - chance)
    return by_chance + max([0.0, *gained.values()])
