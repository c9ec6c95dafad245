"""The folder of a version: `STORE/versions/<manifest digest>/`.

It has weights (hard links, or copies), model card and evidence.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from artifacts.candidate import Candidate
from artifacts.evidence.bundle import write_bundle
from artifacts.evidence.card import Card
from artifacts.evidence.manifest import MANIFEST, find_changes, read_manifest
from artifacts.evidence.signing import sign_with_key
from artifacts.evidence.verify import check_bundle
from artifacts.registry import Version
from artifacts.run_record import RunReport
from prepare.digest import digest_file
from prepare.errors import EvidenceError, RegistryError, raise_as
from prepare.own_command import own_command
from prepare.private_files import (
    flush_folder,
    flush_to_disk,
    is_shared,
    private_umask,
    share_with_group,
)
from prepare.store import Store
from recipes.checkpoints.weight_files import ARCHIVE, BUNDLE, plain_files

VERSIONS = "versions"
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


def make_version(candidate: Candidate, run: RunReport, store: Store) -> Path:
    """Make the folder of weights, card and evidence."""
    parent = store.root / VERSIONS
    with store.explain_errors(), _private_folder(store, parent) as partial:
        source = store.stage_folder(
            candidate.judged.weights.record.stage, candidate.judged.weights.record.key
        )
        _link_files(source / "output", partial)
        Card(candidate.heading, candidate.judged).write(partial)
        manifest = write_bundle(partial, candidate.heading, candidate.records, store)
        final = parent / digest_file(partial / BUNDLE / MANIFEST)
        if not final.exists():
            if candidate.signer is not None:
                sign_with_key(partial, candidate.signer.private_key)
            listed = {partial / entry.path: entry.sha256 for entry in manifest.model_files}
            if faults := check_bundle(partial, lambda file: listed[file]).faults:
                raise EvidenceError(
                    f"the evidence does not give the verdict of the record: {faults[0]}",
                    where=str(source / "output"),
                    hint=f"`{own_command('verify', run.run)}` names what differs in the "
                    "evidence; if the weights were changed, delete that stage's folder; then run "
                    "the model again",
                )
            if is_shared(store.root):
                share_with_group(partial)
            flush_to_disk(partial)
            partial.rename(final)
            flush_folder(parent)
            return final
    _check_unchanged(final)
    return final


@contextmanager
def _private_folder(store: Store, parent: Path) -> Iterator[Path]:
    """Yield a new folder; remove it unless it was renamed."""
    partial = parent / f".{uuid4().hex}.partial"
    with store.in_use():
        try:
            with private_umask(store.root):
                partial.mkdir(parents=True)
                yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _link_files(source: Path, output: Path) -> None:
    for path, file in plain_files(source):
        place = output / path
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, place)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            shutil.copyfile(file, place)


def has_files(version: Version) -> bool:
    """Return whether the files are there, unchanged."""
    folder = Path(version.source)
    with raise_as(RegistryError, "the version's source is not a path", version.source):
        is_there = folder.is_dir()
    if folder.is_absolute() and is_there:
        _check_unchanged(folder)
    return not folder.is_absolute() or is_there


def _check_unchanged(folder: Path) -> None:
    """Raise EvidenceError for a changed, added or removed file."""
    bundle = folder / BUNDLE
    changes = find_changes(bundle, read_manifest(bundle), has_weights=True)
    if not (folder / ARCHIVE).exists():
        changes.append(f"{folder / ARCHIVE}: the file is missing")
    if digest_file(bundle / MANIFEST) != folder.name:
        changes.append(f"{bundle / MANIFEST}: the file was changed")
    if changes:
        raise EvidenceError(
            f"the folder is not as it was when it was judged: {changes[0]}",
            where=str(folder),
            hint="delete the folder, and promote the run again: it is made again",
        )
