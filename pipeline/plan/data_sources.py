"""Decides where a suite's questions, and calibration texts, come from; nothing is read yet.

A decision is plain data that names its content (a digest, a Hub revision, a locked environment),
so it can be part of a stage's key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import eval_gates
import recipes
from eval_gates.suites.json_lines import (
    EXAMPLES_STEM,
    FOLDER_STEMS,
    data_lines,
    find_files,
    read_rows,
)
from eval_gates.suites.known_tasks import known_task
from eval_gates.suites.lm_eval_files import is_task_file, read_task_file
from eval_gates.suites.question_source import QuestionSource
from pipeline.checkpoint.hub import resolve_dataset_revision
from pipeline.core.digest import digest_json
from pipeline.core.errors import EvaluationDataError, UsageError
from pipeline.core.events import Progress
from pipeline.core.file_digests import FileDigests
from pipeline.core.user_path import user_path
from recipes.policy import AnySuite, CodeSuite, LmEvalSuite, MbppSuite, Policy
from recipes.quantization import Calibration
from recipes.schema import CalibrationLimit

HUB_DATASETS = {
    "mmlu": QuestionSource(
        kind="hub", id="cais/mmlu", config="all", split="test", shots_split="dev"
    ),
    "mbpp": QuestionSource(kind="hub", id="evalplus/mbppplus", config="default", split="test"),
    "rouge": QuestionSource(kind="hub", id="abisee/cnn_dailymail", config="3.0.0", split="test"),
}
# For planning before anything is read; a dataset that has other numbers is asked as it is.
HUB_QUESTIONS = {"mmlu": 14_042, "mbpp": 378, "rouge": 11_490}
PACKAGED_QUESTIONS = {"mmlu": 280, "humaneval": 164}
_BUILTIN = Path(eval_gates.__file__).parent / "data"
BUILTIN_QUESTIONS = {"mmlu": _BUILTIN / "quiz.jsonl", "rouge": _BUILTIN / "summaries.jsonl"}
BUILTIN_CALIBRATION = Path(recipes.__file__).parent / "calibration" / "general.jsonl"


@dataclass(frozen=True)
class SuiteSource:
    """Where a suite's questions come from.

    `identity` goes into the key, `folder` does not; `questions` is how many there are, where that
    is known without reading them.
    """

    identity: QuestionSource
    folder: Path | None = None
    questions: int | None = None


class SourceResolver:
    """Resolves data sources for one run; asks the Hub at most once a dataset.

    Args:
        eval_data: the user's folder of evaluation data, if any.
        evaluate_environment: identity of the environment whose packages carry questions.
        progress: receives a note when the preferred source is unavailable.
    """

    def __init__(
        self,
        eval_data: Path | None,
        evaluate_environment: str,
        digests: FileDigests,
        progress: Progress,
    ) -> None:
        if eval_data is not None and not eval_data.is_dir():
            raise UsageError(
                "the folder of evaluation data does not exist",
                where=f"--eval-data {eval_data}",
                hint="name a folder with files such as mmlu_test.jsonl (docs/how-to/policies.md)",
            )
        self._eval_data = eval_data
        self._evaluate_environment = evaluate_environment
        self._digests = digests
        self._progress = progress
        self._revisions: dict[str, str | None] = {}
        self._suites: dict[str, SuiteSource] = {}

    def suite(self, name: str, suite: AnySuite) -> SuiteSource:
        """The first available one of the suite's sources; looked for once a suite.

        Raises:
            EvaluationDataError: none can, or a local file is missing or damaged.
        """
        asked = f"{name} {suite.model_dump_json()}"
        if asked not in self._suites:
            self._suites[asked] = self._find(name, suite)
        return self._suites[asked]

    def _find(self, name: str, suite: AnySuite) -> SuiteSource:
        if isinstance(suite, LmEvalSuite):
            return self._lm_eval(name, suite)
        for source in suite.sources:
            found = self._try(source, suite)
            if found is not None:
                return self._add_humaneval(found, suite)
            if source == "eval-data" and self._eval_data is not None:
                stem = FOLDER_STEMS.get(suite.kind)
                self._progress.note(
                    f"{name}: {self._eval_data} has no {f'{stem}*.jsonl[.gz]' if stem else 'file'} "
                    "for it; looking elsewhere"
                )
            if source == "hub":
                self._progress.note(f"{name}: the Hub cannot be reached; looking elsewhere")
        raise EvaluationDataError(
            f"no source has questions for the suite '{name}'",
            where=f"policy key suites.{name}.sources: {', '.join(suite.sources)}",
            hint="give a folder with --eval-data (docs/how-to/policies.md says what it holds), "
            "or run where the Hub can be reached",
        )

    def _add_humaneval(self, found: SuiteSource, suite: AnySuite) -> SuiteSource:
        """Where HumanEval's problems are asked with the others, what carries them counts, too."""
        if not _asks_humaneval_too(suite):
            return found
        identity = found.identity.model_copy(update={"humaneval": self._evaluate_environment})
        return replace(found, identity=identity)

    def counts(self, policy: Policy) -> dict[str, int | None]:
        """By suite, how many questions its source has; None where that is not known yet.

        Raises:
            EvaluationDataError: as :meth:`suite`.
        """
        return {name: self.suite(name, suite).questions for name, suite in policy.suites.items()}

    def calibration(
        self, calibration: Calibration, limit: CalibrationLimit | None, variant: str
    ) -> tuple[Calibration, dict[str, Any], Path | None]:
        """The data pinned and limited, its identity, and its file if local.

        Raises:
            UsageError: a named file does not exist, or the Hub cannot be reached and the recipe
                has no fallback.
        """
        wanted = self._limit(calibration, limit, variant)
        file = BUILTIN_CALIBRATION
        if wanted.dataset is not None and _is_file_name(wanted.dataset):
            file = user_path(wanted.dataset, "recipe key quantization.calibration.dataset")
            if not file.is_file():
                raise UsageError(
                    "the calibration file does not exist",
                    where=f"{file} (recipe key quantization.calibration.dataset)",
                    hint="give a JSONL or text file, a Hub dataset id, or 'builtin'",
                )
        elif wanted.dataset not in (None, "builtin"):
            revision = wanted.revision or self._revision(wanted.dataset)
            if revision is not None:
                pinned = wanted.model_copy(update={"revision": revision})
                identity = {"hub": wanted.dataset, "revision": revision}
                return pinned, identity, None
            if wanted.fallback is None:
                raise UsageError(
                    f"the calibration dataset '{wanted.dataset}' cannot be reached",
                    where="recipe key quantization.calibration.dataset",
                    hint="name a local file there, or add 'fallback: builtin'",
                )
            self._progress.note(
                f"{variant}: the Hub cannot be reached for {wanted.dataset}; "
                "calibrating with the project's own texts"
            )
        identity = {"file": self._digests.digest(file)}
        # The texts that are used, not those that were hoped for; their folder is of no account.
        name = "builtin" if file == BUILTIN_CALIBRATION else file.name
        used = wanted.model_copy(update={"dataset": name})
        return used, identity, file

    def _limit(
        self, calibration: Calibration, limit: CalibrationLimit | None, variant: str
    ) -> Calibration:
        if limit is None:
            return calibration
        limited = limit.limit(calibration)
        if limited != calibration:
            self._progress.note(
                f"{variant}: calibrating with {limited.samples} x {limited.max_tokens} tokens "
                f"instead of {calibration.samples} x {calibration.max_tokens}: "
                "the profile limits it"
            )
        return limited

    def _try(self, source: str, suite: AnySuite) -> SuiteSource | None:
        if source == "eval-data":
            return self._folder(suite)
        if source == "hub":
            dataset = HUB_DATASETS.get(suite.kind)
            revision = self._revision(str(dataset.id)) if dataset else None
            if dataset is None or revision is None:
                return None
            return _source(dataset.model_copy(update={"revision": revision}), None, suite)
        if source == "packages" and _packaged_questions(suite) is not None:
            identity = QuestionSource(kind="packages", environment=self._evaluate_environment)
            return _source(identity, None, suite)
        if source == "builtin" and suite.kind in BUILTIN_QUESTIONS:
            digest = self._digests.digest(BUILTIN_QUESTIONS[suite.kind])
            return _source(QuestionSource(kind="builtin", digest=digest), None, suite)
        return None

    def _folder(self, suite: AnySuite) -> SuiteSource | None:
        if self._eval_data is None or suite.kind not in FOLDER_STEMS:
            return None
        if not question_files(suite.kind, self._eval_data):
            return None
        files = find_files(self._eval_data, FOLDER_STEMS[suite.kind])  # examples, too
        digest = digest_json([[path.name, self._digests.digest(path)] for path in files])
        return _source(QuestionSource(kind="folder", digest=digest), self._eval_data, suite)

    def _lm_eval(self, name: str, suite: LmEvalSuite) -> SuiteSource:
        """A task by name, which the environment's lm-eval knows, or the user's file of one."""
        if not is_task_file(suite.task):
            identity = QuestionSource(
                kind="hub", task=suite.task, environment=self._evaluate_environment
            )
            # Clusters are counted once the questions are laid out.
            known = None if suite.cluster_by else known_task(suite.task).questions
            return SuiteSource(identity, questions=known)
        file = read_task_file(Path(suite.task))
        folder = file.path.parent
        parts = [
            [os.path.relpath(path, folder), self._digests.digest(path)]
            for path in (*file.code, *file.data)
        ]
        revision = None
        if file.dataset is not None:
            revision = self._revision(file.dataset)
            if revision is None:
                raise EvaluationDataError(
                    f"the dataset of the suite '{name}' cannot be reached on the Hub",
                    where=f"{file.path}, key dataset_path: {file.dataset}",
                    hint="run where the Hub can be reached, or name local files there "
                    "(dataset_path: json, dataset_kwargs: {data_files: ...})",
                )
        return SuiteSource(
            QuestionSource(
                kind="task", digest=digest_json(parts), dataset=file.dataset, revision=revision
            ),
            folder,
        )

    def _revision(self, dataset: str) -> str | None:
        if dataset not in self._revisions:
            self._revisions[dataset] = resolve_dataset_revision(dataset)
        return self._revisions[dataset]


def question_count(suite: AnySuite, identity: QuestionSource, folder: Path | None) -> int | None:
    """How many questions that source has for the suite; None where only reading it would show.

    Raises:
        EvaluationDataError: the folder's files cannot be read, or hold nothing.
    """
    if isinstance(suite, LmEvalSuite):
        return None
    if isinstance(suite, CodeSuite) and suite.problems:
        return len(suite.problems)
    more = PACKAGED_QUESTIONS["humaneval"] if _asks_humaneval_too(suite) else 0
    if identity.kind == "hub":
        return HUB_QUESTIONS[suite.kind] + more
    if identity.kind == "packages":
        return _packaged_questions(suite)
    if folder is None:
        return _lines(BUILTIN_QUESTIONS[suite.kind])
    files = question_files(suite.kind, folder)
    number = sum(_lines(path) for path in files)
    if not number:
        raise EvaluationDataError(
            "there are no questions in the evaluation data",
            where=", ".join(str(path) for path in files) or str(folder),
            hint="write one question a line (docs/how-to/policies.md has the keys), or remove the "
            "file so that another source is used",
        )
    return number + more


def local_rows(suite: AnySuite, source: SuiteSource) -> Iterator[dict[str, Any]]:
    """The rows of a suite's questions as their files have them; none where they lie elsewhere.

    Raises:
        EvaluationDataError: a file cannot be read.
    """
    files: list[Path] = []
    if isinstance(suite, LmEvalSuite):
        if is_task_file(suite.task):
            local = read_task_file(Path(suite.task)).data
            files = [path for path in local if path.name.endswith((".jsonl", ".jsonl.gz"))]
    elif source.identity.kind == "builtin":
        files = [BUILTIN_QUESTIONS[suite.kind]]
    elif source.folder is not None:
        files = question_files(suite.kind, source.folder)
    for path in files:
        for _, row in read_rows(path):
            yield row


def question_files(kind: str, folder: Path) -> list[Path]:
    """The files of a folder whose lines are questions of that kind of suite.

    Raises:
        EvaluationDataError: a file is there both plain and gzipped.
    """
    return find_files(folder, FOLDER_STEMS[kind], but_not=EXAMPLES_STEM)


def _asks_humaneval_too(suite: AnySuite) -> bool:
    return isinstance(suite, MbppSuite) and suite.humaneval


def _packaged_questions(suite: AnySuite) -> int | None:
    """How many the environment's packages have for it; None where they have none.

    Where MBPP's problems are out of reach, HumanEval's are the gate's.
    """
    return PACKAGED_QUESTIONS.get("humaneval" if _asks_humaneval_too(suite) else suite.kind)


def _source(identity: QuestionSource, folder: Path | None, suite: AnySuite) -> SuiteSource:
    return SuiteSource(identity, folder, question_count(suite, identity, folder))


def _lines(path: Path) -> int:
    """Lines that are not empty, as those who read the questions count them."""
    return sum(1 for line in data_lines(path) if line.strip())


def _is_file_name(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith((".jsonl", ".txt"))
