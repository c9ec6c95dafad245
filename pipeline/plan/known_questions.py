"""What is known of a suite's questions before a run lays them out.

Local ones are laid out as a run does it. That takes seconds, so the next command remembers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import Field

from eval_gates.clusters import group_by_cluster
from eval_gates.question_set import asked_of, judged_apart, shuffle
from eval_gates.rows import Answer, Question, of_group
from eval_gates.suites.sources import SuiteSource
from eval_gates.suites.suite_kind import LoggedAnswers, QuestionOrder, kind_of
from pipeline.stages.questions import QUESTION_SEED, QUESTIONS
from prepare.digest import digest_json
from prepare.events import NullProgress
from prepare.private_files import untrusted_reason, write_atomically
from prepare.record import Record
from prepare.untrusted import read_record
from recipes.policy import AnySuite

FOLDER = "known-questions"
_VERSION = 5  # of what is remembered
_LOCAL = ("folder", "builtin")


class KnownQuestions(Record):
    """What is known of a suite's questions before a run lays them out."""

    questions: int | None = Field(
        description="without copies; None where only laying out would show"
    )
    clusters: int | None = Field(description="that are asked, if the suite has clusters")
    logged: LoggedAnswers | None = None
    parts: dict[str, int] = Field(
        {}, description="by value of the suite's `parts_by`, its questions or clusters, where known"
    )
    remarks: list[str] = Field([], description="that laying out made")

    @classmethod
    def so_many(cls, number: int | None) -> KnownQuestions:
        """Return so many questions, or clusters of a suite that has them."""
        return cls(questions=number, clusters=number)

    @classmethod
    def of_answers(
        cls, rows: Sequence[Answer], logged: LoggedAnswers | None, judged_group: str | None
    ) -> KnownQuestions:
        """Return what recorded answers show of their questions."""
        number = len(group_by_cluster(rows))
        parts = sizes_of_parts(rows, judged_group)
        return cls(questions=number, clusters=number, logged=logged, parts=parts)

    def units(self, suite: AnySuite) -> int | None:
        """Return how many questions, or clusters, the suite asks at most; None if unknown."""
        if suite.cluster_by:
            return self.clusters
        known = [number for number in (suite.questions, self.questions) if number is not None]
        return min(known, default=None)


def find_known(suite: AnySuite, source: SuiteSource, home: Path) -> KnownQuestions:
    """Return what is known of a suite's questions; local ones are laid out, or remembered.

    `home` has what is remembered. EvaluationDataError: local files have malformed rows, too many
    copies or useless clusters.
    """
    if source.identity.kind not in _LOCAL:
        clusters = source.clusters
        if clusters is not None:
            clusters = clusters_asked(clusters, source.questions, suite.questions)
        return KnownQuestions(questions=source.questions, clusters=clusters)
    if not type(kind_of(suite)).__module__.startswith("eval_gates."):
        return lay_out(suite, source)  # a plug-in's code may change
    file = home / FOLDER / f"{_key_of(suite, source)}.json"
    if not untrusted_reason(home, file.parent, file):
        with suppress(OSError, ValueError):  # there is none yet, or it is damaged
            return read_record(file, KnownQuestions)
    known = lay_out(suite, source)
    with suppress(OSError):  # such as a home that is read-only
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, known.model_dump_json())
    return known


def _key_of(suite: AnySuite, source: SuiteSource) -> str:
    """Return the digest of all that laying out depends on; remarks name the folder."""
    versions = [_VERSION, QUESTIONS.revision]
    asked = suite.model_dump(mode="json")
    return digest_json(
        [versions, asked, str(source.folder), source.identity.model_dump(mode="json")]
    )


class _Remarks(NullProgress):
    """Keeps what laying out says."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def lay_out(suite: AnySuite, source: SuiteSource) -> KnownQuestions:
    """Return what a run would ask of a local source, without copies; raises as find_known."""
    kind = kind_of(suite)
    files: Sequence[Path] = ()
    if source.folder is not None:
        files = kind.folder_files(source.folder)
    remarks = _Remarks()
    with TemporaryDirectory() as made:
        order = QuestionOrder(source.identity, source.folder, Path(made), remarks)
        questions = kind.known_questions(suite, order)
        apart = judged_apart(kind, suite, questions, files, remarks.note)
        ordered = shuffle(apart, QUESTION_SEED)
        asked = asked_of(ordered, suite.questions, kind.judged_group)
        logged = kind.logged_answers(suite, asked, order)
    number = source.questions
    if number is None:
        number = len(apart) + kind.besides(suite)
    clusters = None
    if suite.cluster_by:
        clusters = len({question.cluster for question in asked})
    return KnownQuestions(
        questions=number,
        clusters=clusters,
        logged=logged,
        parts=sizes_of_parts(asked, kind.judged_group),
        remarks=remarks.texts,
    )


def sizes_of_parts(
    rows: Sequence[Question] | Sequence[Answer], judged_group: str | None
) -> dict[str, int]:
    """Return the number of questions, or clusters, by part; empty where they have none.

    Those of the `judged_group` count, if there is one.
    """
    counted = of_group(rows, judged_group)
    parts = {(row.part, row.cluster or row.id) for row in counted if row.part}
    return Counter(part for part, _ in parts)


def clusters_asked(clusters: int, questions: int | None, limit: int | None) -> int:
    """Return how many clusters so many questions are, where the clusters are alike."""
    if questions is None or limit is None or limit >= questions:
        return clusters
    return max(1, round(clusters * limit / questions))
