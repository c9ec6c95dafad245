"""Reads stages from an evidence bundle instead of a store."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from artifacts.evidence.manifest import Manifest
from eval_gates.speed.load_run import LOADS, LoadRun, read_loads
from pipeline.core.errors import EvidenceError
from pipeline.core.stage_key import stage_key
from pipeline.core.stage_record import StageRecord
from pipeline.core.store import RECORD
from pipeline.core.untrusted.file import open_regular
from pipeline.core.untrusted.lines import UntrustedLinesError
from pipeline.core.untrusted.record import read_record
from pipeline.core.untrusted.rows import MAX_CHARACTERS, read_flat_rows
from pipeline.stages import newest_revision

BLOCK_BYTES = 2**20


class BundledEvidence:
    """A bundle as a source for `artifacts.evidence.recompute`.

    It reads only files in the manifest. `revisions` are code revisions from the bundle's verdict.

    Raises:
        EvidenceError: a newer prepare made it.
    """

    def __init__(self, folder: Path, manifest: Manifest, revisions: Mapping[str, int]) -> None:
        self._folder = folder
        self._listed = {each.path for each in manifest.evidence_files}
        self._revisions = revisions
        for stage, revision in revisions.items():
            if not 1 <= revision <= newest_revision(stage):
                raise EvidenceError(
                    f"its stage '{stage}' is of a revision that this prepare does not know",
                    where=str(folder),
                    hint="it was changed, or a newer prepare made it: verify it with that",
                )

    @property
    def is_whole(self) -> bool:
        return True

    def find(self, stage: str, key: str) -> StageRecord | None:
        path = f"{place_of(stage, key)}/{RECORD}"
        if path not in self._listed:
            return None
        try:
            record = read_record(self._folder / path, StageRecord)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable_error(path, error.strerror) from error
        except ValueError as error:
            raise EvidenceError(
                "a stage's record is damaged", where=str(self._folder / path)
            ) from error
        if (record.stage, record.key) != (stage, key):
            raise EvidenceError("a stage's record is another's", where=str(self._folder / path))
        return record

    def digest(self, stage: str, key: str, name: str) -> str | None:
        path = f"{place_of(stage, key)}/{name}.gz"
        if path not in self._listed:
            return None
        try:
            return digest_unpacked(self._folder / path, MAX_CHARACTERS)
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise self._unreadable_error(path, error) from error

    def rows(self, stage: str, key: str, name: str) -> Iterator[dict[str, Any]]:
        path = f"{place_of(stage, key)}/{name}.gz"
        if path not in self._listed:
            raise self._unreadable_error(path, "it is not listed")
        try:
            yield from read_flat_rows(self._folder / path)
        except (OSError, UntrustedLinesError) as error:
            raise self._unreadable_error(path, error) from error

    def loads(self, stage: str, key: str) -> list[LoadRun]:
        path = f"{place_of(stage, key)}/{LOADS}.gz"
        if path not in self._listed:
            raise self._unreadable_error(path, "it is not listed")
        try:
            return read_loads(self._folder / path)
        except (OSError, ValueError) as error:
            raise self._unreadable_error(path, error) from error

    def place(self, stage: str, key: str) -> str:
        return f"{self._folder.name}/{place_of(stage, key)}"

    def key_of(self, record: StageRecord) -> str:
        """Return the record's key, or '' if the bundle states no revision."""
        revision = self._revisions.get(record.stage)
        if revision is None:
            return ""
        return stage_key(record.stage, revision, record.parameters, record.inputs)

    def _unreadable_error(self, path: str, why: object) -> EvidenceError:
        return EvidenceError(f"a file is damaged: {why}", where=str(self._folder / path))


def digest_unpacked(path: Path, most: int) -> str:
    """Return the sha256 of a gzipped file's content, of at most `most` bytes.

    Raises:
        OSError, EOFError, zlib.error: the file is not regular, not gzip, truncated or damaged.
        ValueError: the content is larger.
    """
    found, size = hashlib.sha256(), 0
    with open_regular(path, None) as packed, gzip.GzipFile(fileobj=packed) as content:
        while block := content.read(BLOCK_BYTES):
            size += len(block)
            if size > most:
                raise ValueError(f"it unpacks to more than {most:,} bytes")
            found.update(block)
    return found.hexdigest()


def place_of(stage: str, key: str) -> str:
    """Return a stage's folder relative to the bundle's."""
    return f"stages/{stage}/{key}"
