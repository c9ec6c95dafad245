"""Expected errors, and the exit code of each.

What options, files and this machine show is 2. What a service or a stage does not do is 1. Exit
codes without an exception: 0 success, 4 a gate failed, 5 undecided, 130 interrupted. Exit code 3 is
an unexpected error.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path
from typing import Any

from prepare.escape import clip, whole_text
from prepare.redaction import redact


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return "did you mean 'fp8-dynamic'? ", or ''."""
    begun = [candidate for candidate in known if name and candidate.startswith(name)]
    close = begun or get_close_matches(name, known, n=1)
    return f"did you mean {' or '.join(map(repr, close[:3]))}? " if close else ""


MAX_PART_CHARACTERS = 20_000
"""Limit for each part of a message; a preflight error lists all faults in one part."""


class ExitCode(IntEnum):
    """Exit code of the `prepare` command."""

    SUCCESS = 0
    EXPECTED_ERROR = 1
    USAGE = 2
    UNEXPECTED = 3
    GATES_FAILED = 4
    UNDECIDED = 5
    INTERRUPTED = 130


class PrepareError(Exception):
    """An expected error: what happened, where, and what to do.

    The message has no full stop. All parts are redacted.
    """

    exit_code = ExitCode.EXPECTED_ERROR

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        # A name in a checkpoint can have any length.
        self.message, self.where, self.hint = (
            whole_text(clip(redact(part), MAX_PART_CHARACTERS)) for part in (message, where, hint)
        )
        super().__init__(self.message)

    def __str__(self) -> str:
        # A file name can contain line breaks.
        place = " ".join(self.where.splitlines())
        lines = [self.message, f"  where: {place}", f"  hint:  {self.hint}"]
        parts = (self.message, self.where, self.hint)
        nonempty = [line for line, part in zip(lines, parts, strict=True) if part]
        return "\n".join(nonempty)

    def to_dict(self) -> dict[str, str]:
        return {
            "kind": type(self).__name__,
            "message": self.message,
            "where": self.where,
            "hint": self.hint,
        }


class UsageError(PrepareError):
    """The command line or a user's file is wrong."""

    exit_code = ExitCode.USAGE


class CheckpointError(PrepareError):
    """A checkpoint is missing, damaged or unsupported."""

    exit_code = ExitCode.USAGE


class HubError(CheckpointError):
    """The Hub did not deliver a file."""

    exit_code = ExitCode.EXPECTED_ERROR


class PreflightError(PrepareError):
    """The run would fail, for all listed obstacles."""

    exit_code = ExitCode.USAGE


class EnvironmentBuildError(PrepareError):
    """A managed Python environment is unusable."""


class StageError(PrepareError):
    """A stage ended without a result."""


class WorkerError(StageError):
    """A worker process failed; `where` is its log."""


class VerificationError(StageError):
    """Quantized weights do not match their recipe."""


class ServingError(PrepareError):
    """A model server failed."""


class EvaluationDataError(PrepareError):
    """Evaluation or calibration data is missing or malformed."""

    exit_code = ExitCode.USAGE


class RegistryError(PrepareError):
    """The model registry failed or rejected a request."""


class EvidenceError(PrepareError):
    """Evidence or its signature is missing or invalid."""


class StoreError(PrepareError):
    """The store is not writable, full or damaged."""


class StageLostError(StoreError):
    """Another process took over this one's stage."""


_BROKEN_DISK = (
    *(errno.EIO, errno.EROFS, errno.ESTALE, errno.EREMOTEIO, errno.ENODEV, errno.ENXIO),
    *(errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EUCLEAN),
)


def means_broken_disk(error: OSError) -> bool:
    """Return whether a disk or a file system failed, or became read-only."""
    return error.errno in _BROKEN_DISK


def means_full_disk(error: OSError) -> bool:
    """Return whether a disk or a quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_of_disk(error: BaseException | None) -> bool:
    """Return whether a full or a broken disk is among the causes."""
    while error is not None:
        if isinstance(error, OSError) and (means_full_disk(error) or means_broken_disk(error)):
            return True
        error = error.__cause__
    return False


def explain(error: BaseException) -> BaseException:
    """Return what the system refuses anywhere as an expected error; others unchanged."""
    if isinstance(error, OSError) and means_full_disk(error):
        return StoreError(
            "the disk is full",
            where=str(error.filename or "the store, or where standard output goes"),
            hint="free some space, then run the same command again",
        )
    if isinstance(error, OSError) and means_broken_disk(error):
        return StoreError(
            f"the disk or its file system failed: {error.strerror or error}",
            where=str(error.filename or "the store, or where standard output goes"),
            hint="`dmesg` may say why; use a folder on another disk, then run the same command "
            "again",
        )
    if isinstance(error, PermissionError) and error.filename:
        return StoreError(
            "permission is denied",
            where=str(error.filename),
            hint="ask its owner to share it with a group, or use a folder of yours",
        )
    if isinstance(error, FileNotFoundError) and not _has_working_folder():
        return UsageError(
            "the working folder was deleted",
            where=os.environ.get("PWD", ""),
            hint="change to a folder that exists, then run the same command again",
        )
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        return UsageError(
            "no temporary folder can be written to",
            where=os.environ.get("TMPDIR", "/tmp"),  # noqa: S108
            hint="mount one there (podman run --tmpfs /tmp; in Kubernetes an emptyDir), or set "
            "TMPDIR",
        )
    return error


def _has_working_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


@contextmanager
def raise_as(
    kind: type[PrepareError],
    message: str,
    where: Path | str,
    hint: str = "",
    *,
    errors: type[Exception] | tuple[type[Exception], ...] = OSError,
) -> Iterator[None]:
    """Convert `errors` to `kind`, with the reason appended to `message`.

    The file that the original error names replaces a path in `where`.
    """
    try:
        yield
    except errors as error:
        if isinstance(where, Path):
            where = getattr(error, "filename", None) or where
        reason = getattr(error, "strerror", None) or error
        raise kind(f"{message}: {reason}", where=str(where), hint=hint) from error


def from_dict(data: Mapping[str, Any]) -> PrepareError:
    """Return the error that `to_dict` serialized."""
    pending: list[type[PrepareError]] = [PrepareError]
    for kind in pending:  # which grows meanwhile
        pending += kind.__subclasses__()
    kinds = {kind.__name__: kind for kind in pending}
    return kinds.get(str(data.get("kind")), PrepareError)(
        str(data.get("message", "unknown error")),
        where=str(data.get("where", "")),
        hint=str(data.get("hint", "")),
    )
