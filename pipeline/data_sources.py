"""Decides where a suite's questions, and calibration texts, come from; nothing is read yet.

A decision is plain data that names its content (a digest, a Hub revision, a locked environment),
so it can be part of a stage's key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import eval_gates
import recipes
from pipeline.digest import FileDigests, digest_json
from pipeline.errors import EvaluationDataError, UsageError
from pipeline.events import Progress
from pipeline.hub import resolve_dataset_revision
from recipes.schema import AnySuite, AwqQuantization, Calibration, CalibrationLimit

# What a folder given with --eval-data may hold for each kind of suite.
FOLDER_PATTERNS = {"mmlu": "mmlu*.jsonl*", "rouge": "summarization*.jsonl*", "humaneval": ""}
HUB_DATASETS = {
    "mmlu": {"id": "cais/mmlu", "config": "all", "split": "test", "shots_split": "dev"},
    "rouge": {"id": "abisee/cnn_dailymail", "config": "3.0.0", "split": "test"},
}
CARRIED_SUMMARIES = Path(eval_gates.__file__).parent / "data" / "summaries.jsonl"
CARRIED_CALIBRATION = Path(recipes.__file__).parent / "calibration" / "general.jsonl"


@dataclass(frozen=True)
class SuiteSource:
    """Where a suite's questions come from: `identity` goes into the key, `folder` does not."""

    identity: dict[str, Any]
    folder: Path | None = None


class SourceResolver:
    """Resolves data sources for one run; asks the Hub at most once a dataset.

    Args:
        eval_data: the user's folder of evaluation data, if any.
        evaluate_environment: identity of the environment whose packages carry questions.
        digests: cached file digests.
        progress: hears when the preferred source is not to be had.
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
                cure="name a folder with files such as mmlu_test.jsonl.gz (docs/evaluation.md)",
            )
        self._eval_data = eval_data
        self._evaluate_environment = evaluate_environment
        self._digests = digests
        self._progress = progress
        self._revisions: dict[str, str | None] = {}

    def suite(self, name: str, suite: AnySuite) -> SuiteSource:
        """The first of the suite's sources that can be had.

        Raises:
            EvaluationDataError: none can.
        """
        for source in suite.sources:
            found = self._try(source, suite.kind)
            if found is not None:
                return found
            if source == "eval-data" and self._eval_data is not None:
                self._progress.note(
                    f"{name}: {self._eval_data} has no {FOLDER_PATTERNS[suite.kind] or 'file'} "
                    "for it; looking elsewhere"
                )
            if source == "hub":
                self._progress.note(f"{name}: the Hub cannot be reached; looking elsewhere")
        raise EvaluationDataError(
            f"no source has questions for the suite '{name}'",
            where=f"policy key suites.{name}.sources: {', '.join(suite.sources)}",
            cure="give a folder with --eval-data (docs/evaluation.md says what it holds), "
            "or run where the Hub can be reached",
        )

    def calibration(
        self, quantization: AwqQuantization, limit: CalibrationLimit | None, variant: str
    ) -> tuple[AwqQuantization, dict[str, Any], Path | None]:
        """The recipe with its data pinned and limited, the data's identity, and its file if local.

        Raises:
            UsageError: a named file does not exist, or the Hub cannot be reached and the recipe
                has no fallback.
        """
        wanted = self._limited(quantization.calibration, limit, variant)
        file: Path | None = None
        if wanted.dataset == "carried":
            file = CARRIED_CALIBRATION
        elif wanted.dataset is not None and _is_file_name(wanted.dataset):
            file = Path(wanted.dataset).expanduser()
            if not file.is_file():
                raise UsageError(
                    "the calibration file does not exist",
                    where=f"{file} (recipe key quantization.calibration.dataset)",
                    cure="give a JSONL or text file, a Hub dataset id, or 'carried'",
                )
        elif wanted.dataset is not None:
            revision = wanted.revision or self._revision(wanted.dataset)
            if revision is not None:
                pinned = wanted.model_copy(update={"revision": revision})
                identity = {"hub": wanted.dataset, "revision": revision}
                return quantization.model_copy(update={"calibration": pinned}), identity, None
            if wanted.fallback is None:
                raise UsageError(
                    f"the calibration dataset '{wanted.dataset}' cannot be reached",
                    where="recipe key quantization.calibration.dataset",
                    cure="name a local file there, or add 'fallback: carried'",
                )
            self._progress.note(
                f"{variant}: the Hub cannot be reached for {wanted.dataset}; "
                "calibrating with the project's own texts"
            )
            file = CARRIED_CALIBRATION
        else:
            file = CARRIED_CALIBRATION
        identity = {"file": self._digests.of(file)}
        # The texts that are used, not those that were hoped for; their folder is of no account.
        name = "carried" if file == CARRIED_CALIBRATION else file.name
        used = wanted.model_copy(update={"dataset": name})
        return quantization.model_copy(update={"calibration": used}), identity, file

    def _limited(
        self, calibration: Calibration, limit: CalibrationLimit | None, variant: str
    ) -> Calibration:
        if limit is None:
            return calibration
        samples = min(calibration.samples, limit.samples)
        tokens = min(calibration.max_tokens, limit.max_tokens)
        if (samples, tokens) != (calibration.samples, calibration.max_tokens):
            self._progress.note(
                f"{variant}: calibrating with {samples} x {tokens} tokens instead of "
                f"{calibration.samples} x {calibration.max_tokens}: the profile limits it"
            )
        return calibration.model_copy(update={"samples": samples, "max_tokens": tokens})

    def _try(self, source: str, kind: str) -> SuiteSource | None:
        if source == "eval-data":
            return self._folder(kind)
        if source == "hub":
            dataset = HUB_DATASETS.get(kind)
            revision = self._revision(dataset["id"]) if dataset else None
            return (
                SuiteSource({"kind": "hub", **dataset, "revision": revision})
                if (dataset and revision)
                else None
            )
        if source == "packages" and kind in ("mmlu", "humaneval"):
            return SuiteSource({"kind": "packages", "environment": self._evaluate_environment})
        if source == "carried" and kind == "rouge":
            digest = self._digests.of(CARRIED_SUMMARIES)
            return SuiteSource({"kind": "carried", "digest": digest})
        return None

    def _folder(self, kind: str) -> SuiteSource | None:
        pattern = FOLDER_PATTERNS[kind]
        if self._eval_data is None or not pattern:
            return None
        files = sorted(self._eval_data.glob(pattern))
        if not files:
            return None
        digest = digest_json([[path.name, self._digests.of(path)] for path in files])
        return SuiteSource({"kind": "folder", "digest": digest}, self._eval_data)

    def _revision(self, dataset: str) -> str | None:
        if dataset not in self._revisions:
            self._revisions[dataset] = resolve_dataset_revision(dataset)
        return self._revisions[dataset]


def _is_file_name(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith((".jsonl", ".txt"))
