"""Errors a user can meet, and the exit code each one ends with.

The tree::

    PrepareError                  1   expected: what happened, where, and the cure
    +-- UsageError                2   the command line or a settings, recipe, profile or policy file
    +-- CheckpointError           1   a checkpoint that is missing, damaged or not supported
    |   +-- HubError              1   the Hub did not hand over what was asked
    +-- PreflightError            1   a run that would fail was refused before it began
    +-- EnvironmentBuildError     1   a managed Python environment could not be built or used
    +-- StageError                1   a stage ended without a result
    |   +-- WorkerError           1   the stage's worker process failed; its log is named
    |   +-- VerificationError     1   the quantized weights are not sound
    |   +-- InternalStageError  3   a defect of ours; the stage's log has the traceback
    +-- ServingError              1   the model server failed; its log's own reason is quoted
    +-- EvaluationDataError       1   questions that are missing or malformed
    +-- RegistryError             1   the model registry refused or could not be reached
    |   +-- RecordedMoveError     6   a move of an alias was recorded, or may be, not completed
    +-- EvidenceError             1   an evidence bundle, or its signature, is not what it should be
    +-- StoreError                1   the store is not writable, full or damaged
        +-- AttemptChangedError   1   the attempt ledger is not as the run was planned by

Exit codes that are no errors: 0 promoted (or every asked-for gate passed), 4 the gates said no,
5 undecided, 130 interrupted. 3 is an unexpected error, whose traceback goes to a log file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from pipeline.core.redaction import redact
from pipeline.core.untrusted.text import clip

MAX_PART_CHARACTERS = 20_000
"""Characters of what an error says of one thing; all faults of a preflight are one text."""


class ExitCode(IntEnum):
    """How the `prepare` command ends."""

    PROMOTED = 0
    EXPECTED_ERROR = 1
    USAGE = 2
    UNEXPECTED = 3
    GATES_FAILED = 4
    UNDECIDED = 5
    RECORDED = 6
    INTERRUPTED = 130


class PrepareError(Exception):
    """An expected error: one sentence on what happened, where, and what to do about it.

    Credentials in its texts, which are often those of libraries, are hidden.

    Args:
        what: what went wrong, as a sentence without a full stop.
        where: the file, key, URL or command concerned.
        cure: what the user can do next, preferably a command.
    """

    exit_code = ExitCode.EXPECTED_ERROR

    def __init__(self, what: str, *, where: str = "", cure: str = "") -> None:
        super().__init__(redact(what))
        self.what = redact(what)
        self.where = redact(where)
        self.cure = redact(cure)

    def __str__(self) -> str:
        # A file's name may have line ends in it: a place is one line, whatever it is called.
        place = " ".join(self.where.splitlines())
        lines = [self.what, f"  where: {place}", f"  cure:  {self.cure}"]
        parts = (self.what, self.where, self.cure)
        said = [line for line, part in zip(lines, parts, strict=True) if part]
        # What somebody named a file or a key may be of any length.
        return "\n".join(clip(line, MAX_PART_CHARACTERS) for line in said)

    def to_dict(self) -> dict[str, str]:
        """The error as plain data, to cross a process boundary as JSON."""
        return {
            "kind": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "cure": self.cure,
        }


class UsageError(PrepareError):
    """The command line or a file the user wrote asks for something that does not exist."""

    exit_code = ExitCode.USAGE


class CheckpointError(PrepareError):
    """A checkpoint is missing, damaged or of a kind that is not supported."""


class HubError(CheckpointError):
    """The Hub did not hand over what was asked."""


class PreflightError(PrepareError):
    """The run would fail: refused before any work, with everything that stands in its way."""


class EnvironmentBuildError(PrepareError):
    """A managed Python environment could not be built or used."""


class StageError(PrepareError):
    """A stage ended without a result."""


class WorkerError(StageError):
    """A stage's worker process failed; `where` names its log."""


class VerificationError(StageError):
    """The quantized weights are not what the recipe promises."""


class InternalStageError(StageError):
    """A stage failed in a way that nobody thought of; its log has the traceback."""

    exit_code = ExitCode.UNEXPECTED


class ServingError(PrepareError):
    """The model server failed to start, answer or stop."""


class EvaluationDataError(PrepareError):
    """Evaluation or calibration data is missing or malformed."""


class RegistryError(PrepareError):
    """The model registry refused a request or could not be reached."""


class RecordedMoveError(RegistryError):
    """The history of a registry has, or may have, a move of an alias that was not completed."""

    exit_code = ExitCode.RECORDED


class EvidenceError(PrepareError):
    """An evidence bundle, or the signature on it, is missing, damaged or not to be trusted."""


class StoreError(PrepareError):
    """The store is not writable, full or damaged."""


class AttemptChangedError(StoreError):
    """The attempt ledger is not as the run was planned by, so the run has to be planned again."""


@contextmanager
def raise_as(
    kind: type[PrepareError],
    what: str,
    where: Path | str,
    cure: str = "",
    *,
    errors: type[Exception] | tuple[type[Exception], ...] = OSError,
) -> Iterator[None]:
    """Raise what is among `errors` as an error of ours, which adds the reason to `what`.

    Args:
        where: as PrepareError has it; in place of a path, the file that the error itself names.
    """
    try:
        yield
    except errors as error:
        if isinstance(where, Path):
            where = getattr(error, "filename", None) or where
        reason = getattr(error, "strerror", None) or error
        raise kind(f"{what}: {reason}", where=str(where), cure=cure) from error


def from_dict(data: Mapping[str, Any]) -> PrepareError:
    """The error that :meth:`PrepareError.to_dict` wrote, as its own class again."""
    kinds: dict[str, type[PrepareError]] = {"PrepareError": PrepareError}
    pending: list[type[PrepareError]] = [PrepareError]
    while pending:
        for kind in pending.pop().__subclasses__():
            kinds[kind.__name__] = kind
            pending.append(kind)
    kind = kinds.get(str(data.get("kind")), PrepareError)
    return kind(
        str(data.get("what", "unknown error")),
        where=str(data.get("where", "")),
        cure=str(data.get("cure", "")),
    )
