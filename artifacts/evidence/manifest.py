"""Size and sha256 of each file of an evidence bundle and of the weights.

Paths are relative: bundle files to `prepare-evidence/`, weights to its parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import Field, field_validator

from pipeline.checkpoint.weights_folder_files import plain_files
from pipeline.core.digest import digest_file
from pipeline.core.errors import EvidenceError, raise_as
from pipeline.core.record import Record
from pipeline.core.untrusted import read_record

MANIFEST = "manifest.json"
ABOUT = (
    "Every file of an evidence bundle of prepare (`evidence_files`, paths from this folder) and "
    "of the "
    "weights folder that it lies in (`model_files`, paths from there). `prepare verify FOLDER` "
    "checks "
    "them and computes the verdict again."
)


class ManifestFile(Record):
    """One file."""

    path: str = Field(description="relative, with slashes")
    size: int = Field(description="bytes")
    sha256: str = Field(description="of the content, in hexadecimal")

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        pure = PurePosixPath(path)
        if not path or pure.is_absolute() or ".." in pure.parts or str(pure) != path:
            raise ValueError(f"{path!r} is not a plain relative path")
        return path


class Manifest(Record):
    """Files of a bundle, and next to it."""

    schema_version: Literal[1] = Field(1, description="of this record")
    subject: str = Field(ABOUT, description="what this is, for who finds it alone")
    prepare_version: str = Field(description="that wrote it")
    recipe: str = Field(description="of the variant that the bundle is about")
    evidence_files: tuple[ManifestFile, ...] = Field(
        fail_fast=True, description="files of the bundle but the manifest"
    )
    model_files: tuple[ManifestFile, ...] = Field(
        fail_fast=True, description="weights, config, tokenizer, model card"
    )

    @field_validator("evidence_files", "model_files")
    @classmethod
    def _check_each_once(cls, files: tuple[ManifestFile, ...]) -> tuple[ManifestFile, ...]:
        twice = [path for path, n in Counter(each.path for each in files).items() if n > 1]
        if twice:
            raise ValueError(f"{twice[0]!r} is listed twice")
        return files


def list_files(folder: Path, leave_out: tuple[str, ...] = ()) -> tuple[ManifestFile, ...]:
    """Return every file below a folder, by path. Arguments and errors: :func:`plain_files`."""
    return tuple(
        ManifestFile(path=path, size=file.stat().st_size, sha256=digest_file(file))
        for path, file in plain_files(folder, leave_out)
    )


def differences(
    folder: Path,
    listed: tuple[ManifestFile, ...],
    leave_out: tuple[str, ...] = (),
    digest: Callable[[Path], str] = digest_file,
) -> list[str]:
    """Return the changed, missing and added files of a folder.

    Args:
        digest: of a file.

    Raises:
        EvidenceError: as `plain_files`, or a file cannot be read.
    """
    wanted = {each.path: each for each in listed}
    with raise_as(EvidenceError, "a file cannot be read", folder):
        there = dict(plain_files(folder, leave_out))
        return [
            *(f"{folder / path}: the file is missing" for path in wanted if path not in there),
            *(f"{folder / path}: the file was added" for path in there if path not in wanted),
            *(
                f"{folder / path}: the file was changed (its {what} is another)"
                for path, file in there.items()
                if path in wanted and (what := _find_change(file, wanted[path], digest))
            ),
        ]


def read_manifest(bundle: Path) -> Manifest:
    """Return a bundle's manifest; raises EvidenceError if it is missing or damaged."""
    file = bundle / MANIFEST
    with (
        raise_as(EvidenceError, "the manifest cannot be read", file, "is this an evidence bundle?"),
        raise_as(
            EvidenceError,
            "the manifest is damaged, or of a newer prepare",
            file,
            "get the bundle again from where it was published",
            errors=ValueError,
        ),
    ):
        return read_record(file, Manifest)


def _find_change(file: Path, wanted: ManifestFile, digest: Callable[[Path], str]) -> str:
    """Return the file's difference from the list: '', 'size' or 'digest'."""
    if file.stat().st_size != wanted.size:
        return "size"
    return "" if digest(file) == wanted.sha256 else "digest"
