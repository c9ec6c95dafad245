"""A registered version as files to deploy.

They are found, copied, and compared with the registered digests.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from artifacts.evidence.manifest import MANIFEST, read_manifest
from artifacts.registry.registry import EVIDENCE_TAG, FILES_TAG, WEIGHTS_TAG, Registry, Version
from pipeline.checkpoint.weight_files import weights_digest
from pipeline.checkpoint.weights_folder_files import (
    ADDED_LATER,
    BUNDLE,
    SIGNATURE,
    digest_of_other_files,
    plain_files,
)
from pipeline.core.digest import digest_file
from pipeline.core.errors import RegistryError, UsageError
from pipeline.core.file_digests import FileDigests
from pipeline.core.untrusted.text import clip
from pipeline.release.signed_version import check_signed

KEY = re.compile("[0-9a-f]{64}")


class FileSource(Protocol):
    """Source of a version's files: a model registry, or a repository of an OCI registry."""

    def fetch(self, version: Version, folder: Path) -> None:
        """Copy the version's files into that existing, empty folder."""


def folder_of(version: Version, weights: Path | None, store: Path, command: str) -> Path:
    """Return the folder of a version's files.

    It is `weights`, which `prepare pull` made, or the version's own source.

    For a store in an object store: the stage that wrote them, which is copied to this node.

    Raises:
        RegistryError: its files are not on this machine; the hint ends in `command`.
    """
    if weights is None and not Path(version.source).is_dir():
        reference = f"{version.name}@{version.version}"
        raise RegistryError(
            "the version's files are not on this machine",
            where=version.source,
            hint=f"prepare pull {reference} FOLDER, then {command.format(reference=reference)}",
        )
    return (weights or Path(version.source)).absolute()


def find_version(registry: Registry, reference: str) -> Version:
    """Return the version NAME@ALIAS or NAME@NUMBER; finish incomplete alias changes before.

    Raises:
        UsageError: the reference has another form, or there is no such version.
    """
    name, mark, wanted = reference.rpartition("@")
    if not (mark and name and wanted):
        raise UsageError(
            f"'{reference}' names no version",
            where="NAME@ALIAS",
            hint="write the model's name, '@', and an alias or a version's number: "
            "smollm2-135m@champion, smollm2-135m@3",
        )
    registry.settle(name)
    versions = registry.versions(name)
    for version in versions:
        if wanted in version.aliases or wanted == version.version:
            return version
    known = sorted({alias for version in versions for alias in version.aliases})
    raise UsageError(
        f"'{name}' has no version or alias '{wanted}'" if versions else f"no model '{name}'",
        where=registry.uri,
        hint=f"its aliases: {', '.join(known) or 'none'}; versions: "
        f"{', '.join(v.version for v in versions)}"
        if versions
        else f"known: {', '.join(registry.names()) or 'nothing yet'}",
    )


def check_files(
    version: Version,
    folder: Path,
    digests: FileDigests | None = None,
    *,
    public_key: Path | None,
    added: tuple[str, ...] = ADDED_LATER,
) -> int:
    """Compare a folder's files with the registered digests; return their number.

    Files in `added` may have been added since. With a public key, the files must be signed with it.

    Raises:
        RegistryError: they differ from the judged files, or there is no digest to check.
        CheckpointError: the folder has no weights, or a file cannot be read.
        EvidenceError: there is something that is neither a file nor a folder; or the files differ
            from those signed with that key.
    """
    words = {WEIGHTS_TAG: "weights", FILES_TAG: "other files (config, tokenizer, card, evidence)"}
    for tag in words:
        if tag not in version.tags:
            raise RegistryError(
                f"version {version.version} of '{version.name}' has no digest to check its files "
                "by",
                where=f"tag {tag}",
                hint="it was not registered by `prepare`, or its tags were changed: `prepare "
                f"promote {version.tags.get('prepare.run') or 'RUN'}` registers it again",
            )
    listed = list(plain_files(folder, added))
    found = {
        WEIGHTS_TAG: weights_digest(folder, digests.digest if digests else digest_file),
        FILES_TAG: digest_of_other_files(folder, added),
    }
    for tag, digest in found.items():
        if version.tags[tag] != digest:
            raise RegistryError(
                f"the {words[tag]} are not those that were judged: their digest is "
                f"{digest[:12]}, registered is {clip(version.tags[tag], 12)}",
                where=str(folder),
                hint="a user changed, added or removed a file; the verdict says nothing of these",
            )
    check_signed(version, folder, public_key)
    return len(listed)


def pull_version(
    registry: FileSource,
    version: Version,
    destination: Path,
    public_key: Path | None,
    required_tags: Mapping[str, str] | None = None,
) -> int:
    """Copy the version's files into a new folder, which appears when it is complete.

    Args:
        required_tags: by name; a version with other values is refused.

    Returns:
        number of files.

    Raises:
        UsageError: the folder exists.
        RegistryError: the files are unavailable, or differ from the judged ones; or a tag differs.
        EvidenceError: they are not signed with the given public key.
    """
    for tag, value in (required_tags or {}).items():
        if version.tags.get(tag) != value:
            raise RegistryError(
                f"this is another version than required: its tag {tag} is "
                f"{clip(version.tags.get(tag, 'missing'), 12)}, required is {clip(value, 12)}",
                where=f"{version.name} version {version.version}",
                hint="export the version again; if it did not change, a user changed its tags",
            )
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(
            "the destination is there already, and not empty",
            where=str(destination),
            hint="name a new folder",
        )
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        registry.fetch(version, partial)
        files = check_files(version, partial, public_key=public_key, added=(SIGNATURE,))
        refuse_unlisted(version, partial)
        if destination.exists():
            destination.rmdir()
        partial.rename(destination)
    except OSError as error:
        raise RegistryError(
            f"the files cannot be copied: {error.strerror or error}",
            where=str(error.filename or destination),
            hint="name a folder on a disk with room that you may write",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return files


def refuse_unlisted(version: Version, folder: Path) -> None:
    """Refuse files that the evidence next to the weights does not list by name.

    The evidence's digest is a tag. Anyone who can add a file to a registry may be able to set it.

    Raises:
        RegistryError: there is such a file, or the evidence that the version names is missing.
        EvidenceError: its list cannot be read.
    """
    bundle = folder / BUNDLE
    if not (bundle / MANIFEST).is_file():
        if EVIDENCE_TAG not in version.tags:  # of a registration without evidence, as by hand
            return
        raise RegistryError(
            "the evidence that the version names is not among its files",
            where=f"{version.name} version {version.version}, tag {EVIDENCE_TAG}",
            hint="a user removed it: `prepare promote` its run again",
        )
    manifest = read_manifest(bundle)
    listed = {each.path for each in manifest.model_files} | {f"{BUNDLE}/{MANIFEST}"}
    listed |= {f"{BUNDLE}/{each.path}" for each in manifest.evidence_files}
    there = {path for path, _ in plain_files(folder, (SIGNATURE,))}
    if differing := sorted(there ^ listed):
        raise RegistryError(
            f"{len(differing)} files are not as the evidence lists them: "
            f"{clip(', '.join(differing), 200)}",
            where=f"{version.name} version {version.version}",
            hint="a user added or removed files; the verdict says nothing of these",
        )
