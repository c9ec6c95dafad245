"""Sends a registered version to an OCI registry of the network, as a ModelPack."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from artifacts.registry.model_pack import (
    Blob,
    ModelPack,
    PackedFile,
    checkpoint_config,
    files_in,
    pack,
)
from artifacts.registry.oci_registry import OciRegistry
from artifacts.registry.registry import Registry, Version
from artifacts.registry.remote_repository import RemoteRepository, Sent
from pipeline.core.events import Progress
from pipeline.core.file_digests import FileDigests
from pipeline.release.deployment import check_files


def push_version(
    registry: Registry,
    version: Version,
    repository: RemoteRepository,
    tag: str,
    digests: FileDigests,
    progress: Progress,
) -> Sent:
    """Send a version; a tag of that name then names it.

    From an OCI layout its own manifest is sent. From another registry the files are checked against
    the registered digests, and packed on the fly.

    Raises:
        RegistryError: the files are not those that were judged, or a registry refused.
    """
    if isinstance(registry, OciRegistry):
        return repository.push(
            registry.pack_of(version), lambda blob: registry.blob_path(version.name, blob), tag
        )
    with _files_of(registry, version) as folder:
        check_files(version, folder, digests)
        made, sources = pack_folder(version, folder, digests, progress)
        return repository.push(made, sources.__getitem__, tag)


def pack_folder(
    version: Version, folder: Path, digests: FileDigests, progress: Progress
) -> tuple[ModelPack, dict[Blob, Path]]:
    """A version's files as a ModelPack, and where each layer's bytes are.

    The same files and tags have the digest that they would have in an OCI layout; what a recheck
    has added to the tags since counts.
    """
    found = list(files_in(folder))
    hashed = digests.of_all([path for _, path in found], progress)
    blobs = [
        Blob(f"sha256:{digest}", path.stat().st_size)
        for (_, path), digest in zip(found, hashed, strict=True)
    ]
    files = [PackedFile(name, blob) for (name, _), blob in zip(found, blobs, strict=True)]
    made = pack(version.name, files, version.tags, checkpoint_config(folder))
    return made, dict(zip(blobs, (path for _, path in found), strict=True))


@contextmanager
def _files_of(registry: Registry, version: Version) -> Iterator[Path]:
    """The version's files: where they lie, or fetched for as long as they are needed."""
    source = Path(version.source)
    if source.is_absolute() and source.is_dir():
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="prepare-push-") as folder:
        registry.fetch(version, Path(folder))
        yield Path(folder)
