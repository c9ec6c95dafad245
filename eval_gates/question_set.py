"""A suite's questions as one set: without copies, and in clusters."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eval_gates.clusters import labels_of, whole_end
from eval_gates.rows import PROMPT_DIGEST, Question, digest_document, of_group
from eval_gates.suites.json_lines import FIELDS, read_rows
from eval_gates.suites.suite_kind import SuiteKind
from prepare.errors import EvaluationDataError
from recipes.policy import EvalTask

MAX_NAME_LENGTH = 60
"""Characters of a part's name, which reports show."""
MAX_MISSING = 5  # parts that a refusal names
LARGEST_SHARE_OF_COPIES = 0.05  # MMLU's own is 0.007
# What is asked; of a task of lm-eval, the digest of it.
_ASKS = ("prompt", "messages", "server", "continuations")
Questions = list[Question]


def judged_apart(
    kind: SuiteKind[Any],
    task: EvalTask,
    questions: Questions,
    files: Sequence[Path],
    note: Callable[[str], None],
) -> Questions:
    """Return the questions of these files without copies, in the task's clusters and parts.

    EvaluationDataError: too many are copies, all of a part are, or a field says nothing.
    """
    if task.reads_fields:
        questions = with_fields(questions, files) if files else questions
        if task.cluster_by:
            questions = with_clusters(questions, task.cluster_by)
        if task.parts_by:
            questions = with_parts(questions, task.parts_by)
        questions = [_without_fields(question) for question in questions]
    place = ", ".join(map(str, files))
    apart = without_copies(questions, note, place, may_repeat=kind.may_repeat)
    judged = _with_judged_clusters(apart, kind.judged_group, note)
    cure = "name parts that are no copies of others"
    counted = of_group(judged, kind.judged_group)
    check_parts(questions, counted, "without copies the questions have", cure)
    return judged


def _with_judged_clusters(
    questions: Questions, group: str | None, note: Callable[[str], None]
) -> Questions:
    """Return the clusters of which the suite's own gate counts a question.

    Others have copies alone there, such as a turn whose ladder alone is not a copy.
    """
    if group is None:
        return questions
    pairs = list(zip(labels_of(questions), questions, strict=True))
    judged = {label for label, question in pairs if question.group == group}
    if left_out := len({label for label, _ in pairs} - judged):
        note(f"{left_out} clusters have nothing {group} that is no copy, and are left out")
    return [question for label, question in pairs if label in judged]


def shuffle(questions: Questions, seed: int) -> Questions:
    """Return the questions in an order that depends on the seed alone.

    Clusters stay together.
    """
    together: dict[str, Questions] = {}
    for question in questions:
        together.setdefault(question.cluster or question.id, []).append(question)
    order = list(together.values())
    random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
    return [question for cluster in order for question in cluster]


def without_copies(
    questions: Questions,
    note: Callable[[str], None],
    place: str = "",
    *,
    may_repeat: bool = False,
) -> Questions:
    """Return the questions without copies, which would count as separate evidence.

    Copies within one cluster stay. EvaluationDataError for many, unless they `may_repeat`.
    """
    ids = Counter(question.id for question in questions)
    name, times = ids.most_common(1)[0] if ids else ("", 1)
    if times > 1:
        raise EvaluationDataError(
            f"{times} questions have the id '{name}'",
            where=f"{place or 'the suite'}, question {name}",
            hint="give each question a separate id; where the suite requires none, ids can be "
            "left out",
        )
    first: dict[str, str] = {}
    kept = []
    copied = ""
    for question, label in zip(questions, labels_of(questions), strict=True):
        asked = [question.data.get(PROMPT_DIGEST), *(getattr(question, key) for key in _ASKS)]
        content = json.dumps([part for part in asked if part], sort_keys=True)
        if first.setdefault(content, label) == label:
            kept.append(question)
        else:
            copied = copied or content
    copies = len(questions) - len(kept)
    if copies > LARGEST_SHARE_OF_COPIES * len(questions) and not may_repeat:
        raise EvaluationDataError(
            f"{copies} of {len(questions)} questions are copies of others",
            where=f"{place or 'the suite'}, one of these questions: {copied[:200]}",
            hint="each would count as separate evidence: see whether a file lies there twice; "
            "several references of one text belong into one row",
        )
    if copies:
        note(f"{copies} of {len(questions)} questions are copies of others, and left out")
    return kept


def with_fields(questions: Questions, files: Sequence[Path]) -> Questions:
    """Return the questions with all fields of their files; a kind may have given them.

    Those of the files come first, in their order. EvaluationDataError: rows are left out.
    """
    if any(FIELDS in question.data for question in questions):
        return questions
    rows = [row for file in files for _, row in read_rows(file)]
    if len(rows) > len(questions):
        raise EvaluationDataError(
            f"{len(questions)} questions are of {len(rows)} rows, so which row's fields they have "
            "is not known",
            where=", ".join(map(str, files)),
            hint="leave out 'cluster_by' and 'parts_by', or what chooses among the rows",
        )
    fields = rows + [{}] * len(questions)
    return [
        replace(question, data={**question.data, FIELDS: own})
        for question, own in zip(questions, fields, strict=False)
    ]


def with_clusters(questions: Questions, field: str) -> Questions:
    """Return the questions clustered by equal values of that field."""
    values = _values_of(questions, field, "cluster_by", "which belong together")
    labelled = [
        replace(question, cluster=digest_document({"cluster": value})[:16])
        for question, value in zip(questions, values, strict=True)
    ]
    if len({question.cluster for question in labelled}) < 2:
        raise EvaluationDataError(
            f"all questions have the same '{field}', so they are one value and show nothing",
            where="policy key 'cluster_by'",
            hint="choose another field, or more questions",
        )
    return labelled


def with_parts(questions: Questions, field: str) -> Questions:
    """Return the questions with that field's value as the name of their part.

    EvaluationDataError: a value is no name, all are one, or two of them may be the same.
    """
    values = _values_of(questions, field, "parts_by", "which part each is of")
    named = []
    spellings = dict[str, str]()
    for question, value in zip(questions, values, strict=True):
        name = value if isinstance(value, str) else json.dumps(value)
        is_plain = isinstance(value, str | int | float) and name.strip() == name
        if not is_plain or not name.isprintable() or not 0 < len(name) <= MAX_NAME_LENGTH:
            raise EvaluationDataError(
                f"the field '{field}' is {name!r:.80}, which does not name a part",
                where=f"policy key 'parts_by', question {question.id}",
                hint="give each question a word or a number there, without blanks at its ends and "
                f"of {MAX_NAME_LENGTH} characters at most, or choose another field",
            )
        known = spellings.setdefault(_spelling(value), name)
        if known != name:
            raise EvaluationDataError(
                f"the field '{field}' is {known!r} and {name!r}, which may be one part in two "
                "spellings",
                where=f"policy key 'parts_by', question {question.id}",
                hint="spell it alike in all rows, since the loss of half a part is harder to see; "
                "or give different parts different names",
            )
        named.append(replace(question, part=name))
    if len({question.part for question in named}) < 2:
        raise EvaluationDataError(
            f"all questions have the same '{field}', so there are no parts",
            where="policy key 'parts_by'",
            hint="choose another field, or leave the key out",
        )
    return named


def _spelling(value: str | float) -> str:
    """Return what equal numbers have in common, and names that differ by case, form or joints."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return re.sub(r"[-_\s]+", " ", unicodedata.normalize("NFC", str(value)).lower())


def asked_of(questions: Questions, limit: int | None, judged_group: str | None) -> Questions:
    """Return the questions that are asked of these, in their order: whole clusters.

    EvaluationDataError if a part has none of them that the suite's own gate counts, which are those
    of the `judged_group`: its loss would be unseen.
    """
    end = min(limit or len(questions), len(questions))
    asked = questions[: whole_end(labels_of(questions), end)]
    counted = of_group(asked, judged_group)
    whose = f"the {limit} questions that are asked have"
    check_parts(questions, counted, whose, "raise 'questions'")
    return asked


def check_parts(questions: Questions, kept: Questions, whose: str, cure: str) -> None:
    """Refuse to leave out all questions of a part."""
    missing = sorted({question.part for question in questions} - {one.part for one in kept})
    if missing:
        listed = ", ".join(missing[:MAX_MISSING])
        more = f" and {len(missing) - MAX_MISSING} more" if len(missing) > MAX_MISSING else ""
        raise EvaluationDataError(
            f"{whose} none of the parts {listed}{more}, whose loss would not be seen",
            where="policy key 'parts_by'",
            hint=f"{cure}; or leave the rows of these parts out",
        )


def _values_of(questions: Questions, field: str, key: str, tells: str) -> list[Any]:
    """Return each question's value of a field that a policy's key names."""
    values = []
    for question in questions:
        fields = question.data[FIELDS] if FIELDS in question.data else question.to_row()
        if field not in fields:
            raise EvaluationDataError(
                f"the questions have no field '{field}' that would say {tells}",
                where=f"policy key '{key}', question {question.id}",
                hint=f"this question's fields are: {', '.join(sorted(fields)) or 'none'}; each "
                "question needs it, also those that the suite adds",
            )
        if fields[field] is None:
            raise EvaluationDataError(
                f"the field '{field}' is null, which does not say {tells}",
                where=f"policy key '{key}', question {question.id}",
                hint="give each question a value of it, or choose another field",
            )
        values.append(fields[field])
    return values


def _without_fields(question: Question) -> Question:
    data = {key: value for key, value in question.data.items() if key != FIELDS}
    return replace(question, data=data)
