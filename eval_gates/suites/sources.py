"""Sources of a suite's questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import Field

from eval_gates.suites.json_lines import READ, find_files, read_rows
from prepare.digest import digest_json
from prepare.errors import EvaluationDataError, UsageError, raise_as
from prepare.record import SparseRecord
from recipes.dataset_commit import load_from_hub
from recipes.policy import Suite


class QuestionSource(SparseRecord):
    """Source of questions, without its place on a machine."""

    kind: Literal["folder", "hub", "packages", "builtin", "task"]
    digest: str | None = Field(None, description="of what a folder, a file or a task's files hold")
    tools: str | None = Field(None, description="digest of this project's tools, which logs name")
    environment: str | None = Field(None, description="identity of the one with the packages")
    id: str | None = Field(None, description="of the dataset on the Hub")
    config: str | None = None
    split: str | None = None
    shots_split: str | None = Field(None, description="that worked examples come from")
    revision: str | None = Field(None, description="commit on the Hub")
    task: str | None = Field(None, description="of lm-eval, by its name there")
    dataset: str | None = Field(None, description="on the Hub, that a task's file names")
    humaneval: str | None = Field(None, description="environment that carries its problems, too")


Row = dict[str, Any]


def hub_rows(source: QuestionSource, split: str | None) -> list[Row]:
    """Return a Hub dataset's rows at the pinned revision.

    EvaluationDataError: they cannot be read, or the library took another revision from its cache.
    """
    with raise_as(
        EvaluationDataError,
        "the Hub's dataset cannot be read",
        f"{source.id}, split {split}",
        "try again, or give a folder with --eval-data",
        errors=(OSError, ValueError),
    ):
        dataset = load_from_hub(
            str(source.id), source.config, split=split, revision=source.revision
        )
    return [dict(row) for row in dataset]


@dataclass(frozen=True)
class SuiteSource:
    """Available source of a suite's questions."""

    identity: QuestionSource  # part of the stage's key
    folder: Path | None = None  # not part of it
    questions: int | None = None  # None where only laying out would show
    clusters: int | None = None  # of the packages'


class SourceLookup(Protocol):
    """The run's facts for finding a source."""

    @property
    def eval_data(self) -> Path | None: ...

    @property
    def environment(self) -> str:
        """Identity of `evaluate`, whose packages contain questions."""

    def digest_of(self, file: Path) -> str:
        pass

    def revision_of(self, dataset: str) -> str | None:
        """Return the newest commit; None where there is no Hub. HubError: it is late."""

    def note(self, text: str) -> None: ...


class HubBenchmark(NamedTuple):
    """A benchmark's name on the Hub's leaderboards."""

    dataset: str
    task: str
    title: str
    questions: int  # of the whole benchmark


class HubQuestions(NamedTuple):
    """Hub dataset, and its number of questions for planning."""

    source: QuestionSource
    questions: int

    def benchmark(self, title: str) -> HubBenchmark:
        """Return the benchmark of all questions."""
        return HubBenchmark(str(self.source.id), str(self.source.config), title, self.questions)


class SourcedKind:
    """Sources of a kind of suite."""

    folder_stem: str = ""  # how the names of its files in a folder of evaluation data begin
    examples_stem: str | None = None  # of files there that hold worked examples
    other_stem: str | None = None  # of files there that belong to another suite
    hub: HubQuestions | None = None
    packaged: int | None = None  # questions of the source `packages`
    packaged_file: Path | None = None  # the project's own file with them; None: `evaluate` has them
    carried: Path | None = None  # the project's own questions

    def find_source(self, name: str, suite: Suite, lookup: SourceLookup) -> SuiteSource:
        """Return the suite's own data, or its first available source.

        EvaluationDataError if there is none, a file is damaged, or a given folder has no file for
        the suite. HubError: the Hub is late.
        """
        if suite.data is not None:
            return self._own_source(name, suite, lookup)
        for source in suite.sources:
            if source == "eval-data" and lookup.eval_data is not None:
                self._check_folder(name, suite, lookup.eval_data)
            resolved = self._try(source, suite, lookup)
            if resolved is not None:
                if "hub" in suite.sources[: suite.sources.index(source)]:
                    lookup.note(
                        f"{name}: this machine has no Hub, so its questions are those of the "
                        f"source '{source}', the next in policy key suites.{name}.sources"
                    )
                return resolved
        raise EvaluationDataError(
            f"no source has questions for the suite '{name}'",
            where=f"policy key suites.{name}.sources: {', '.join(suite.sources)}",
            hint="; or ".join(self._other_sources(name, suite)),
        )

    def _other_sources(self, name: str, suite: Suite) -> Iterator[str]:
        """Yield what a suite without an available source can ask."""
        if self.folder_stem:
            added = "" if "eval-data" in suite.sources else " and eval-data to its sources"
            yield (
                f"give a folder with --eval-data{added} (docs/how-to/suites.md says what it holds)"
            )
            yield f"name a file with the key suites.{name}.data"
        if self.hub is not None:
            added = "" if "hub" in suite.sources else ", and add hub to its sources"
            yield f"run where the Hub can be reached{added}"
        carried = "packages" if self.packaged else "builtin" if self.carried else ""
        if carried:
            yield f"take the few that prepare carries: 'sources: [{carried}]'"

    def _own_source(self, name: str, suite: Suite, lookup: SourceLookup) -> SuiteSource:
        where = f"policy key suites.{name}.data"
        if not self.folder_stem:
            raise UsageError(
                f"a suite of the kind '{suite.kind}' reads no data of yours",
                where=where,
                hint="remove the key, or take another kind (docs/how-to/suites.md)",
            )
        place = suite.path_of(str(suite.data), where)
        if not place.exists():
            raise UsageError(
                "the suite's data does not exist",
                where=f"{place} ({where})",
                hint="name a file or a folder; a relative path starts from the policy's directory",
            )
        if place.is_dir():
            self._check_folder(name, suite, place)
        elif not place.name.endswith(READ):
            raise UsageError(
                "a suite's questions are JSON Lines",
                where=f"{place} ({where})",
                hint=f"give a file whose name ends {' or '.join(READ)}: one question a line "
                "(docs/how-to/suites.md has the keys)",
            )
        identity = self._folder_identity(place, lookup)
        return SuiteSource(identity, place, self.count(suite, identity))

    def _check_folder(self, name: str, suite: Suite, folder: Path) -> None:
        """Raise EvaluationDataError if a folder that the user gave has no file for the suite."""
        if self.folder_stem and self.folder_files(folder):
            return
        forms = f"{self.folder_stem}*.jsonl and {self.folder_stem}*.jsonl.gz"
        read = f"a suite of the kind '{suite.kind}' reads {forms} there"
        if not self.folder_stem:
            read = f"a suite of the kind '{suite.kind}' reads no folder"
        if suite.data is not None:
            cures = ["name its file with the key 'data'", "remove that key"]
        else:
            cures = ["name its file with the key 'data'"] if self.folder_stem else []
            cures.append("leave eval-data out of its sources")
        raise EvaluationDataError(
            f"the folder has no questions for the suite '{name}'",
            where=f"{folder} (policy key suites.{name})",
            hint=f"{read}; in the policy, {', or '.join(cures)}",
        )

    def _folder_identity(self, place: Path, lookup: SourceLookup) -> QuestionSource:
        files = [place]
        if place.is_dir():
            files = find_files(place, self.folder_stem, but_not=(self.other_stem,))
        digest = digest_json([[path.name, lookup.digest_of(path)] for path in files])
        return QuestionSource(kind="folder", digest=digest)

    def count(self, suite: Suite, identity: QuestionSource) -> int | None:
        """Return the number of questions, if it is known without laying them out."""
        if identity.kind == "hub" and self.hub is not None:
            return self.hub.questions
        return self.packaged if identity.kind == "packages" else None

    def besides(self, suite: Suite) -> int:
        """Return how many questions are asked besides those of a source's files."""
        return 0

    def read(
        self, source: QuestionSource, folder: Path | None, *, examples: bool = False
    ) -> list[tuple[str, Row]]:
        """Return the source's rows, or its worked examples, with their places.

        EvaluationDataError without questions.
        """
        if source.kind == "hub":
            split = source.shots_split if examples else source.split
            rows = enumerate(hub_rows(source, split))
            return [(f"{source.id}, split {split}, row {number}", row) for number, row in rows]
        if folder is None:
            files = [self.carried] if self.carried else []
        elif examples:
            is_folder = folder.is_dir()
            files = find_files(folder, str(self.examples_stem)) if is_folder else []
        else:
            files = self.folder_files(folder)
        read = [numbered for file in files for numbered in read_rows(file)]
        if not read and not examples:
            raise _no_questions(files, folder)
        return read

    def packaged_clusters(self, suite: Suite) -> int | None:
        """Return the number of clusters of the source `packages`, if it is known."""
        return None

    def local_files(
        self, suite: Suite, identity: QuestionSource, folder: Path | None
    ) -> list[Path]:
        """Return local files whose lines are the questions."""
        if identity.kind == "builtin" and self.carried is not None:
            return [self.carried]
        return self.folder_files(folder) if folder is not None else []

    def folder_files(self, folder: Path) -> list[Path]:
        """Return a folder's files, or one file itself.

        EvaluationDataError for a file that is there plain and gzipped, or in another form.
        """
        if not self.folder_stem:
            return []
        if folder.is_file():
            return [folder]
        but_not = (self.examples_stem, self.other_stem)
        return find_files(folder, self.folder_stem, but_not=but_not)

    def _try(self, source: str, suite: Suite, lookup: SourceLookup) -> SuiteSource | None:
        identity, folder = self._identify(source, suite, lookup)
        if identity is None:
            return None
        clusters = self.packaged_clusters(suite) if identity.kind == "packages" else None
        return SuiteSource(identity, folder, self.count(suite, identity), clusters)

    def _identify(
        self, source: str, suite: Suite, lookup: SourceLookup
    ) -> tuple[QuestionSource | None, Path | None]:
        folder = lookup.eval_data
        if source == "eval-data" and folder is not None:
            return self._folder_identity(folder, lookup), folder
        if source == "hub" and self.hub is not None:
            revision = lookup.revision_of(str(self.hub.source.id))
            if revision is not None:
                return self.hub.source.model_copy(update={"revision": revision}), None
        if source == "packages" and self.packaged is not None:
            digest = self.packaged_file and lookup.digest_of(self.packaged_file)
            packages = QuestionSource(
                kind="packages", environment=lookup.environment, digest=digest
            )
            return packages, None
        if source == "builtin" and self.carried is not None:
            return QuestionSource(kind="builtin", digest=lookup.digest_of(self.carried)), None
        return None, None


def _no_questions(files: Sequence[Path], folder: Path | None) -> EvaluationDataError:
    return EvaluationDataError(
        "there are no questions in the evaluation data",
        where=", ".join(str(path) for path in files) or str(folder),
        hint="write one question a line (docs/how-to/suites.md has names and keys); or take "
        "another source: remove the suite's key 'data', or eval-data from its sources",
    )
