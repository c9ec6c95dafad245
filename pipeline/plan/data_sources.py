"""Selects the sources of suite questions and calibration texts without reading them.

A source is plain data that identifies its content, as a part of stage keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import Field

import recipes
from eval_gates.clusters import labels_of, repeated_field, whole_end
from eval_gates.question_set import judged_apart, shuffle
from eval_gates.rows import Question
from eval_gates.suites.json_lines import question_files, read_rows
from eval_gates.suites.sources import QuestionSource, SuiteSource
from eval_gates.suites.suite_kind import LoggedAnswers, QuestionOrder, kind_of
from pipeline.stages.questions import QUESTION_SEED, QUESTIONS, QuestionsResult
from prepare.digest import FileDigests, digest_json
from prepare.errors import EvaluationDataError, HubError, PrepareError, UsageError
from prepare.events import NullProgress, Progress
from prepare.private_files import untrusted_reason, write_atomically
from prepare.record import Record
from prepare.untrusted import read_record
from prepare.user_path import user_path
from recipes.checkpoints.hub import resolve_dataset_revision
from recipes.policy import AnySuite, Policy
from recipes.quantization import Calibration, names_file
from recipes.quantizers.calibration import form_of
from recipes.schema import CalibrationLimit

_MAX_NAMES = 20
KNOWN_VERSION = 1  # of what is remembered of local questions
_LOCAL = ("folder", "builtin")  # sources whose questions are laid out by `plan`, too
BUILTIN_CALIBRATION = Path(recipes.__file__).parent / "calibration" / "general.jsonl"


class KnownQuestions(Record):
    """What is known of a suite's questions before a run lays them out."""

    questions: int | None = Field(
        description="that are asked at most; None where only laying out would show"
    )
    clusters: int | None = Field(description="of these, if the suite has clusters")
    logged: LoggedAnswers | None = None
    remarks: list[str] = Field([], description="that laying out made")


@dataclass
class SourceResolver:
    """Resolver of one run's data sources; asks the Hub once a dataset.

    `environment` is the identity of the environment with packaged questions.
    """

    eval_data: Path | None
    environment: str
    digests: FileDigests
    progress: Progress
    _revisions: dict[str, str | None] = field(default_factory=dict, init=False)
    _suites: dict[str, SuiteSource] = field(default_factory=dict, init=False)
    _known: dict[str, KnownQuestions] = field(default_factory=dict, init=False)
    _remarks: _Remarks = field(default_factory=lambda: _Remarks(), init=False)

    def __post_init__(self) -> None:
        if self.eval_data is not None and not self.eval_data.is_dir():
            raise UsageError(
                "the folder of evaluation data does not exist",
                where=f"--eval-data {self.eval_data}",
                hint="name a folder with files such as mmlu_test.jsonl (docs/how-to/suites.md)",
            )

    def suite(self, name: str, suite: AnySuite) -> SuiteSource:
        """Return the suite's first available source.

        EvaluationDataError: there is none, or a local file is missing. HubError: the Hub is late.
        """
        asked = f"{name} {suite.model_dump_json()}"
        if asked not in self._suites:
            self._suites[asked] = kind_of(suite).find_source(name, suite, self)
        return self._suites[asked]

    def known(self, name: str, suite: AnySuite) -> KnownQuestions:
        """Return what is known of the suite's questions; local ones are laid out.

        EvaluationDataError: as :meth:`suite`, or local files have malformed rows, too many copies
        or useless clusters.
        """
        asked = f"{name} {suite.model_dump_json()}"
        if asked not in self._known:
            source = self.suite(name, suite)
            if source.identity.kind in _LOCAL:
                known = self._remembered(name, suite, source)
            else:
                clusters = source.clusters
                if clusters is not None:
                    clusters = clusters_asked(clusters, source.questions, suite.questions)
                known = KnownQuestions(questions=source.questions, clusters=clusters)
            self._known[asked] = known
        return self._known[asked]

    def _remembered(self, name: str, suite: AnySuite, source: SuiteSource) -> KnownQuestions:
        """Return what is known of a local source, as an earlier command laid it out, if one did.

        Else every command would lay out again, which takes seconds. A plug-in's code may change.
        """
        self._remarks.suite = name
        made = [
            KNOWN_VERSION,
            QUESTIONS.revision,
            suite.model_dump(mode="json"),
            str(source.folder),
        ]
        key = digest_json([*made, source.identity.model_dump(mode="json"), source.questions])
        file = self.digests.cache_file.parent / "known-questions" / f"{key}.json"
        is_own = type(kind_of(suite)).__module__.startswith("eval_gates.")
        if is_own and not untrusted_reason(file.parent.parent, file.parent, file):
            with suppress(OSError, ValueError):
                known = read_record(file, KnownQuestions)
                for remark in known.remarks:
                    self._remarks.note(remark)
                return known
        said = _Notes()
        known = self._lay_out(suite, source, said).model_copy(update={"remarks": said.notes})
        for remark in said.notes:
            self._remarks.note(remark)
        if is_own:
            with suppress(OSError):  # such as a home that is read-only
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, known.model_dump_json())
        return known

    def _lay_out(self, suite: AnySuite, source: SuiteSource, said: Progress) -> KnownQuestions:
        """Return what is left of a local source's questions when copies are left out."""
        kind = kind_of(suite)
        files: Sequence[Path] = ()
        if source.folder is not None:
            files = kind.folder_files(source.folder)
        with TemporaryDirectory() as made:
            order = QuestionOrder(source.identity, source.folder, Path(made), said)
            questions = kind.known_questions(suite, order)
            apart = judged_apart(kind, questions, files, suite.cluster_by, said.note)
            asked = _limited(shuffle(apart, QUESTION_SEED), suite.questions)
            logged = kind.logged_answers(suite, asked, order)
        clusters = len({question.cluster for question in asked}) if suite.cluster_by else None
        # A kind may ask questions besides those of its files.
        number = source.questions
        if number is not None:
            number -= len(questions) - len(apart)
        return KnownQuestions(questions=number, clusters=clusters, logged=logged)

    def faults(self, policy: Policy) -> Iterator[PrepareError]:
        """Yield why suites have no valid questions."""
        if self.eval_data is not None and not any(map(_reads_folder, policy.suites.values())):
            yield UsageError(
                "no suite of the policy reads the folder of evaluation data",
                where=f"--eval-data {self.eval_data}; policy '{policy.name}'",
                hint="leave the option out, or write 'eval-data' to the 'sources' of a suite",
            )
        else:
            self.note_unread(policy)
        identities = dict[str, QuestionSource]()
        for name, suite in policy.suites.items():
            try:
                identities[name] = self.suite(name, suite).identity
                self.known(name, suite)
            except (EvaluationDataError, HubError, UsageError) as error:
                yield error
        yield from _same_questions(policy, identities)

    def note_remarks(self, policy: Policy) -> None:
        """Note what suites leave out of local files or read otherwise.

        A run notes it when it lays the questions out. The files are valid (:meth:`faults`).
        """
        for name, suite in policy.suites.items():
            self.known(name, suite)
        for remark in self._remarks.take():
            self.note(remark)

    def note_unread(self, policy: Policy) -> None:
        """Note the names of the folder's files that no suite reads."""
        if self.eval_data is None:
            return
        kinds = [kind_of(suite) for suite in policy.suites.values() if _reads_folder(suite)]
        read = {stem for kind in kinds for stem in (kind.folder_stem, kind.examples_stem) if stem}
        others = {kind.other_stem for kind in kinds if kind.other_stem} - read
        unread = [
            name
            for name in question_files(self.eval_data)
            if not name.startswith(tuple(read)) or name.startswith(tuple(others))
        ]
        if unread:
            more = f" and {len(unread) - _MAX_NAMES} more" if len(unread) > _MAX_NAMES else ""
            self.note(
                f"no suite of the policy '{policy.name}' reads these files of --eval-data: "
                f"{', '.join(unread[:_MAX_NAMES])}{more}; its suites read files whose names begin "
                f"with {', '.join(sorted(read))}"
            )

    def digest_of(self, file: Path) -> str:
        return self.digests.digest(file)

    def revision_of(self, dataset: str) -> str | None:
        """Return the dataset's newest commit; None where there is no Hub. HubError: it is late."""
        if dataset not in self._revisions:
            is_away = None in self._revisions.values()
            self._revisions[dataset] = None if is_away else resolve_dataset_revision(dataset)
        return self._revisions[dataset]

    def note(self, text: str) -> None:
        self.progress.note(text)

    def counts(self, policy: Policy) -> dict[str, int | None]:
        """Return available questions, or the clusters that are asked, by suite; None if unknown.

        EvaluationDataError: as :meth:`known`.
        """
        known = {name: self.known(name, suite) for name, suite in policy.suites.items()}
        return {
            name: known[name].clusters if suite.cluster_by else known[name].questions
            for name, suite in policy.suites.items()
        }

    def logs(self, policy: Policy) -> dict[str, LoggedAnswers]:
        """Return by suite what its source's own answers show, where it has some.

        EvaluationDataError: as :meth:`known`.
        """
        logs = {name: self.known(name, suite).logged for name, suite in policy.suites.items()}
        return {name: logged for name, logged in logs.items() if logged is not None}

    def calibration(
        self, calibration: Calibration, limit: CalibrationLimit | None, variant: str
    ) -> tuple[Calibration, dict[str, Any], Path | None]:
        """Return the pinned, limited calibration, its identity, and its local file.

        UsageError: neither Hub nor fallback is available. HubError: the Hub is late.
        """
        wanted = limit.limit(calibration) if limit is not None else calibration
        if (wanted.samples, wanted.max_tokens) != (calibration.samples, calibration.max_tokens):
            self.progress.note(
                f"{variant}: calibrating with {wanted.samples} x {wanted.max_tokens} tokens "
                f"instead of {calibration.samples} x {calibration.max_tokens}: "
                "the profile limits it (its key calibration_limit)"
            )
        file = BUILTIN_CALIBRATION
        where = "recipe key quantization.calibration.dataset"
        if wanted.dataset is not None and names_file(wanted.dataset):
            file = user_path(wanted.dataset, where)
        elif limit is not None and limit.fallback and wanted.fallback is not None:
            self.progress.note(
                f"{variant}: calibrating with the project's own texts instead of "
                f"{wanted.dataset}: the profile chooses the recipe's fallback (its key "
                "calibration_limit.fallback)"
            )
        elif wanted.dataset not in (None, "builtin"):
            revision = wanted.revision or self.revision_of(wanted.dataset)
            if revision is not None:
                pinned = wanted.model_copy(update={"revision": revision})
                return pinned, {"hub": wanted.dataset, "revision": revision}, None
            if wanted.fallback is None:
                raise UsageError(
                    f"this machine has no Hub, which has the calibration texts '{wanted.dataset}'",
                    where=where,
                    hint="name a local file there, or add 'fallback: builtin'",
                )
            self.progress.note(
                f"{variant}: this machine has no Hub, which has {wanted.dataset}; calibrating "
                "with the recipe's fallback, the project's own texts"
            )
        # The identity is that of the texts that are used; their folder is irrelevant.
        name = "builtin" if file == BUILTIN_CALIBRATION else file.name
        used = wanted.model_copy(update={"dataset": name})
        form = form_of(file, where)
        return used, {"file": self.digests.digest(file), "form": form}, file


class _Notes(NullProgress):
    """Keeps notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class _Remarks:
    """What laying out local questions said of suites, each thing once."""

    def __init__(self) -> None:
        self.suite = ""  # that is laid out now
        self._suites: dict[str, list[str]] = {}  # by what was said of them
        self._taken: set[str] = set()

    def note(self, text: str) -> None:
        suites = self._suites.setdefault(text, [])
        if self.suite not in suites:
            suites.append(self.suite)

    def take(self) -> list[str]:
        """Return what was not taken before."""
        new = [text for text in self._suites if text not in self._taken]
        self._taken.update(new)
        return [f"{', '.join(self._suites[text])}: {text}" for text in new]


def _limited(questions: Sequence[Question], limit: int | None) -> Sequence[Question]:
    """Return the questions that are asked of these, in their order: whole clusters."""
    labels = labels_of(questions)
    return questions[: whole_end(labels, min(limit or len(questions), len(questions)))]


def clusters_asked(clusters: int, questions: int | None, limit: int | None) -> int:
    """Return how many clusters so many questions are, where the clusters are alike."""
    if questions is None or limit is None or limit >= questions:
        return clusters
    return max(1, round(clusters * limit / questions))


def _same_questions(
    policy: Policy, identities: Mapping[str, QuestionSource]
) -> Iterator[PrepareError]:
    """Yield an error for each suite that asks what another one asks, in the same way."""
    first: dict[str, str] = {}
    for name, identity in identities.items():
        suite = policy.suites[name]
        asked = suite.model_dump(mode="json", include={*kind_of(suite).task.model_fields})
        other = first.setdefault(digest_json([identity.model_dump(), asked]), name)
        if other != name:
            yield UsageError(
                f"the suites '{other}' and '{name}' ask the same questions in the same way",
                where=f"policy keys suites.{other} and suites.{name}",
                hint="name each suite's own file with the key 'data', or remove one: the same "
                "answers would count as separate evidence",
            )


def _reads_folder(suite: AnySuite) -> bool:
    return suite.data is None and "eval-data" in suite.sources


def check_known_clusters(policy: Policy, sources: SourceResolver, progress: Progress) -> None:
    """Raise UsageError for a suite whose questions are known to share passages.

    Advisory suites, and suites with clusters, are permitted.
    """
    for name, suite in policy.suites.items():
        source = sources.suite(name, suite)
        field = kind_of(suite).known_cluster(suite, source.identity, source.folder)
        if field is not None:
            _refuse_shared(name, suite, field, progress)


def check_laid_out_clusters(
    policy: Policy, laid_out: Mapping[str, QuestionsResult], progress: Progress
) -> None:
    """Raise UsageError as :func:`check_known_clusters`, for questions that are laid out."""
    for name, suite in policy.suites.items():
        field = laid_out[name].shared_text if name in laid_out else None
        if field is not None:
            _refuse_shared(name, suite, field, progress)


def _refuse_shared(name: str, suite: AnySuite, field: str, progress: Progress) -> None:
    if suite.cluster_by is not None:
        return
    what = (
        f"the suite '{name}' has several questions with one '{field}', whose answers rise and "
        "fall together; each would count as separate evidence"
    )
    if suite.tier != "advisory":
        raise UsageError(
            what,
            where=f"policy key suites.{name}.cluster_by",
            hint=f"add 'cluster_by: {field}', and each {field} is one value",
        )
    progress.note(f"{what}; it is advisory, so this blocks nothing")


def note_repeated_fields(policy: Policy, sources: SourceResolver, progress: Progress) -> None:
    """Note questions that share a field but declare no cluster."""
    for name, suite in policy.suites.items():
        if suite.cluster_by is not None:
            continue
        source = sources.suite(name, suite)
        files = kind_of(suite).local_files(suite, source.identity, source.folder)
        field = repeated_field([row for path in files for _, row in read_rows(path)])
        if field is not None:
            progress.note(
                f"{name}: several questions have the same '{field}'. If their answers rise and "
                f"fall together, add 'cluster_by: {field}' (policy key suites.{name}.cluster_by)"
            )
