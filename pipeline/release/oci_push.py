"""Sends a registered version to an OCI registry, or into a folder of layouts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from artifacts.command_line import without_password
from artifacts.registry.history import CHAMPION, PREVIOUS, AliasChange, ChangeReason
from artifacts.registry.model_pack import (
    Blob,
    ModelPack,
    PackedFile,
    checkpoint_config,
    files_in,
    pack,
)
from artifacts.registry.oci_layout_registry import OciLayoutRegistry
from artifacts.registry.oci_repository import OciRepository, PushResult
from artifacts.registry.registry import Registry, Version, who_am_i
from pipeline.core.events import Progress
from pipeline.core.file_digests import FileDigests
from pipeline.release.deployment import check_files
from pipeline.release.signed_version import check_signed


def push_version(
    registry: Registry,
    version: Version,
    repository: OciRepository,
    tag: str,
    digests: FileDigests,
    progress: Progress,
    public_key: Path | None,
) -> PushResult:
    """Send a version, and tag it.

    An OCI layout sends its own manifest. For another registry the files are checked against the
    registered digests, and packed on the fly. With a public key, a layout's files are copied into a
    temporary folder to check their signature.

    Raises:
        RegistryError: the files differ from the judged ones, or a registry rejected them.
        EvidenceError: they are not signed with the given public key.
    """
    if isinstance(registry, OciLayoutRegistry):
        if public_key is not None:
            with _files_of(registry, version) as folder:
                check_signed(version, folder, public_key)
        return repository.push(
            registry.pack_of(version), lambda blob: registry.blob_path(version.name, blob), tag
        )
    with _files_of(registry, version) as folder:
        check_files(version, folder, digests, public_key=public_key)
        made, sources = pack_folder(version, folder, digests, progress)
        return repository.push(made, sources.__getitem__, tag)


def push_to_folder(
    registry: Registry,
    version: Version,
    target: OciLayoutRegistry,
    alias: str | None,
    digests: FileDigests,
    public_key: Path | None,
) -> PushResult:
    """Copy a version into a folder of OCI layouts, which has separate aliases and history.

    Args:
        alias: to set there; None for no alias.

    Raises:
        RegistryError: the files differ from the judged ones, or the folder cannot be written.
    """
    name, before = version.name, target.blobs(version.name)
    with _files_of(registry, version) as folder:
        if isinstance(registry, OciLayoutRegistry):  # it checks digests as files are fetched
            check_signed(version, folder, public_key)
        else:
            check_files(version, folder, digests, public_key=public_key)
        number = target.register(name, folder, version.tags)
    if alias is not None:
        _point_to(target, alias, number, version, registry.uri)
    copied = next(each for each in target.versions(name) if each.version == number)
    made = target.pack_of(copied)
    blobs = {*(file.blob for file in made.files), Blob.of(made.config)}
    sent = [blob for blob in blobs if blob.digest not in before]
    return PushResult(
        reference=f"{target.uri}/{name}@{alias or number}",
        digest=made.blob.digest,
        sent=len(sent),
        present=len(blobs) - len(sent),
        sent_bytes=sum(blob.size for blob in sent),
    )


def _point_to(
    target: OciLayoutRegistry, alias: str, number: str, version: Version, origin: str
) -> None:
    target.settle(version.name)
    tags = version.tags
    cause = ChangeReason(
        "override" if tags.get("prepare.override") else "promote",
        who_am_i(),
        run=tags.get("prepare.run", ""),
        verdict=tags.get("prepare.verdict", ""),
        reason=f"pushed from {without_password(origin)}, version {version.version}",
    )
    replaces = target.aliases(version.name).get(alias)
    previous = PREVIOUS if alias == CHAMPION else None
    target.move_alias(version.name, AliasChange(alias, number, replaces, cause, previous))


def pack_folder(
    version: Version, folder: Path, digests: FileDigests, progress: Progress
) -> tuple[ModelPack, dict[Blob, Path]]:
    """Return a version's files as a ModelPack, and the source of each layer's bytes.

    The digest equals that of an OCI layout with the same files and tags, including tags of
    rechecks.
    """
    found = list(files_in(folder))
    hashed = digests.digest_all([path for _, path in found], progress)
    blobs = [
        Blob(f"sha256:{digest}", path.stat().st_size)
        for (_, path), digest in zip(found, hashed, strict=True)
    ]
    files = [PackedFile(name, blob) for (name, _), blob in zip(found, blobs, strict=True)]
    made = pack(version.name, files, version.tags, checkpoint_config(folder))
    return made, dict(zip(blobs, (path for _, path in found), strict=True))


@contextmanager
def _files_of(registry: Registry, version: Version) -> Iterator[Path]:
    source = Path(version.source)
    if source.is_absolute() and source.is_dir():
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="prepare-push-") as folder:
        registry.fetch(version, Path(folder))
        yield Path(folder)
