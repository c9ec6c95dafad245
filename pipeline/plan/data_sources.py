"""Selects the sources of suite questions and calibration texts without reading them.

A source is plain data that identifies its content, as a part of stage keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import recipes
from eval_gates.clusters import repeated_field
from eval_gates.suites.json_lines import has_stem, question_files, read_rows
from eval_gates.suites.sources import QuestionSource, SuiteSource
from eval_gates.suites.suite_kind import SuiteKind, kind_of
from pipeline.plan.known_questions import KnownQuestions, find_known
from pipeline.stages.questions import QuestionsResult
from prepare.digest import FileDigests, digest_json
from prepare.errors import EvaluationDataError, HubError, PrepareError, UsageError
from prepare.events import Progress
from prepare.user_path import user_path
from recipes.checkpoints.hub import resolve_dataset_revision
from recipes.policy import AnySuite, Policy
from recipes.quantization import Calibration, names_file
from recipes.quantizers.calibration import form_of
from recipes.schema import CalibrationLimit

_MAX_NAMES = 20
BUILTIN_CALIBRATION = Path(recipes.__file__).parent / "calibration" / "general.jsonl"


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
    _noted: set[str] = field(default_factory=set, init=False)  # remarks on local questions

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
            self._known[asked] = find_known(suite, source, self.digests.cache_file.parent)
        return self._known[asked]

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
        suites = defaultdict[str, list[str]](list)
        for name, suite in policy.suites.items():
            for remark in self.known(name, suite).remarks:
                suites[remark].append(name)
        new = [remark for remark in suites if remark not in self._noted]
        for remark in new:
            self.note(f"{', '.join(suites[remark])}: {remark}")
        self._noted.update(new)

    def note_unread(self, policy: Policy) -> None:
        """Note the names of files that no suite reads, in folders that suites read."""
        readers = defaultdict[Path, list[SuiteKind[Any]]](list)
        for name, suite in policy.suites.items():
            if suite.data is not None:
                folder = suite.path_of(suite.data, f"policy key suites.{name}.data")
                readers[folder].append(kind_of(suite))
            elif self.eval_data is not None and _reads_folder(suite):
                readers[self.eval_data].append(kind_of(suite))
        for folder, kinds in readers.items():
            if folder.is_dir():
                told = "--eval-data" if folder == self.eval_data else str(folder)
                self._note_unread_of(folder, told, policy.name, kinds)

    def _note_unread_of(
        self, folder: Path, told: str, policy: str, kinds: Sequence[SuiteKind[Any]]
    ) -> None:
        read = {stem for kind in kinds for stem in (kind.folder_stem, kind.examples_stem) if stem}
        others = {kind.other_stem for kind in kinds if kind.other_stem} - read
        unread = [
            name
            for name in question_files(folder)
            if not any(has_stem(name, stem) for stem in read)
            or any(has_stem(name, stem) for stem in others)
        ]
        if unread:
            more = f" and {len(unread) - _MAX_NAMES} more" if len(unread) > _MAX_NAMES else ""
            self.note(
                f"no suite of the policy '{policy}' reads these files of {told}: "
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

    def known_of(self, policy: Policy) -> dict[str, KnownQuestions]:
        """Return by suite what is known of its questions; raises as :meth:`known`."""
        return {name: self.known(name, suite) for name, suite in policy.suites.items()}

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
            own = "name each suite's own file with the key 'data', or "
            yield UsageError(
                f"the suites '{other}' and '{name}' ask the same questions in the same way",
                where=f"policy keys suites.{other} and suites.{name}",
                hint=f"{own if kind_of(suite).folder_stem else ''}remove one: the same answers "
                "would count as separate evidence",
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
