"""Size and sha256 of each file of an evidence bundle and of the weights.

Paths are relative to `prepare-evidence/`, weights to its parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import Field, field_validator

from prepare.digest import digest_file
from prepare.errors import EvidenceError, raise_as
from prepare.escape import clip
from prepare.record import Record
from prepare.untrusted import read_record
from prepare.user_path import MAX_NAME_BYTES
from recipes.checkpoints.weight_files import ADDED_LATER, ARCHIVE, BUNDLE, plain_files

MANIFEST = "manifest.json"
ABOUT = (
    "Every file of an evidence bundle of prepare (`evidence_files`, paths from this folder) and of "
    "the weights folder around it (`model_files`, paths from there). `prepare verify FOLDER` "
    "checks them and computes the verdict again."
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
        is_plain = path and not pure.is_absolute() and ".." not in pure.parts
        # No file can have a NUL, or a name of more bytes.
        is_possible = "\0" not in path and all(
            len(part.encode(errors="replace")) <= MAX_NAME_BYTES for part in pure.parts
        )
        if not (is_plain and is_possible) or str(pure) != path:
            raise ValueError(f"{clip(path, 200)!r} is not a plain relative path")
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
        twice = [path for path, n in Counter(file.path for file in files).items() if n > 1]
        if twice:
            raise ValueError(f"{twice[0]!r} is listed twice")
        return files


def list_files(folder: Path, leave_out: tuple[str, ...] = ()) -> tuple[ManifestFile, ...]:
    """Return every file by path; as :func:`plain_files`."""
    return tuple(
        ManifestFile(path=path, size=file.stat().st_size, sha256=digest_file(file))
        for path, file in plain_files(folder, leave_out)
    )


def find_changes(
    bundle: Path,
    manifest: Manifest,
    *,
    has_weights: bool,
    added: tuple[str, ...] = ADDED_LATER,
    digest: Callable[[Path], str] = digest_file,
) -> list[str]:
    """Return changed, missing and added files of a bundle and the folder around it.

    Files in `added` may be unlisted; `digest` reads a weights file.
    """
    name = Path(ARCHIVE).name
    listed = [e for e in manifest.evidence_files if e.path != name or (bundle / name).exists()]
    changes = _differences(bundle, listed, (MANIFEST,), digest_file)
    if has_weights:
        changes += _differences(bundle.parent, manifest.model_files, (BUNDLE, *added), digest)
    return changes


def _differences(
    folder: Path,
    listed: Iterable[ManifestFile],
    leave_out: tuple[str, ...],
    digest: Callable[[Path], str],
) -> list[str]:
    wanted = {entry.path: entry for entry in listed}
    with raise_as(EvidenceError, "a file cannot be read", folder):
        there = dict(plain_files(folder, leave_out))
        differences = [
            f"{folder / path}: the file is missing" for path in wanted if path not in there
        ]
        for path, file in there.items():
            if path not in wanted:
                differences.append(f"{file}: the file was added")
            elif file.stat().st_size != wanted[path].size:
                differences.append(f"{file}: the file was changed (its size is another)")
            elif digest(file) != wanted[path].sha256:
                differences.append(f"{file}: the file was changed (its digest is another)")
        return differences


def read_manifest(bundle: Path) -> Manifest:
    """Return a bundle's manifest, or raise EvidenceError."""
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
