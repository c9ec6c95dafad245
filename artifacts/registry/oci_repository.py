"""A repository of an OCI registry: sends and fetches ModelPacks.

A tag is only a copy of an alias, because such registries cannot compare and set tags.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifacts.registry.model_pack import (
    MANIFEST_TYPE,
    Blob,
    ModelPack,
    annotations_of,
    read_manifest,
    read_pack,
    tags_of,
)
from artifacts.registry.registry import Version
from pipeline.core.errors import RegistryError, UsageError
from pipeline.core.events import NullProgress, Progress

if TYPE_CHECKING:
    from artifacts.registry.oras_client import OrasClient

SCHEME = "oci://"
# Up to this size a blob goes in one request; larger ones in pieces of it.
PIECE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class PushResult:
    """Result of a push."""

    reference: str  # HOST/REPOSITORY:TAG
    digest: str  # of the manifest
    sent: int  # how many blobs went over the network
    present: int  # how many were there already
    sent_bytes: int  # of the blobs that went


class OciRepository:
    """HOST[:PORT]/REPOSITORY[:TAG] or HOST/REPOSITORY@sha256:..., with or without `oci://`.

    Raises:
        UsageError: the reference has another form.
        RegistryError: `oras` is not installed.
    """

    def __init__(
        self, reference: str, *, insecure: bool = False, progress: Progress | None = None
    ) -> None:
        plain = reference.removeprefix(SCHEME)
        host, _, rest = plain.partition("/")
        if host in ("", ".", "..", "~"):
            raise _no_repository(reference)
        try:
            from artifacts.registry.oras_client import parse_reference

            container = parse_reference(plain) if host and rest else None
        except ImportError as error:
            raise RegistryError(
                "an OCI registry of the network needs the extra 'oci', which is not installed",
                where=reference,
                hint="in the clone of prepare: pip install '.[oci]'; a folder of this machine "
                "(oci:///FOLDER) needs no extra",
            ) from error
        except ValueError:
            container = None
        if container is None or container.registry != host:
            raise _no_repository(reference)
        self._container: Any = container
        self._host = host
        self._insecure = insecure
        self._progress = progress or NullProgress()
        self._done = 0
        tagged = rest.partition("@")[0].rpartition("/")[2]
        self.tag: str | None = str(container.tag) if ":" in tagged else None
        self.repository = f"{host}/{container.api_prefix}"

    def push(self, made: ModelPack, file_of: Callable[[Blob], Path], tag: str) -> PushResult:
        """Send the missing blobs, then the manifest, and set the tag.

        Raises:
            RegistryError: the registry refuses or does not answer.
        """
        with self._connect() as client:
            layers = {file.blob: file_of(file.blob) for file in made.files}
            missing = [blob for blob in layers if not self._has(client, blob)]
            self._count_bytes(client, sum(blob.size for blob in missing))
            for blob in missing:
                self._upload(client, blob, layers[blob])
            config = Blob.of(made.config)
            configs = 0 if self._has(client, config) else 1
            if configs:
                self._upload_bytes(client, config, made.config)
            self._put_manifest(client, made, tag)
        return PushResult(
            reference=f"{self.repository}:{tag}",
            digest=made.blob.digest,
            sent=len(missing) + configs,
            present=len(layers) + 1 - len(missing) - configs,
            sent_bytes=sum(blob.size for blob in missing) + configs * config.size,
        )

    def version(self) -> Version:
        """Return the referenced version with its tags.

        Raises:
            RegistryError: the manifest is missing, or not a ModelPack.
        """
        with self._connect() as client:
            manifest = self._get_manifest(client)
        read_pack(manifest, lambda blob: b"")
        return Version(
            name=self.repository,
            version=str(self._container.digest or self._container.tag),
            aliases=(),
            source=f"{SCHEME}{self.repository}@{Blob.of(manifest).digest}",
            tags=tags_of(annotations_of(read_manifest(manifest))),
        )

    def fetch(self, version: Version, folder: Path) -> None:
        """Write the version's files into that folder; check each digest.

        Raises:
            RegistryError: a blob is unavailable, or differs from the manifest.
        """
        with self._connect() as client:
            self._container.digest = version.source.rpartition("@")[2]
            made = read_pack(self._get_manifest(client), lambda blob: b"")
            self._done, total = 0, sum(file.blob.size for file in made.files)
            for file in made.files:
                destination = folder / file.path
                destination.parent.mkdir(parents=True, exist_ok=True)
                self._download(client, file.blob, destination, total)

    def _get_manifest(self, client: OrasClient) -> bytes:
        response = client.do_request(
            f"{client.prefix}://{self._container.manifest_url()}",
            "GET",
            headers={"Accept": MANIFEST_TYPE},
        )
        if response.status_code == 404:
            raise RegistryError(
                "there is no such artifact in the registry",
                where=str(self._container),
                hint="check the repository's name, and the tag or digest",
            )
        self._check(client, response.ok)
        wanted = self._container.digest
        if wanted and Blob.of(response.content).digest != wanted:
            raise RegistryError(
                "the registry sent another manifest than the one that was asked for",
                where=str(self._container),
                hint="do not use it; ask the operator of the registry",
            )
        return bytes(response.content)

    def _put_manifest(self, client: OrasClient, made: ModelPack, tag: str) -> None:
        # The bytes themselves: the client's own method would write the JSON again.
        response = client.do_request(
            f"{client.prefix}://{self._container.manifest_url(tag)}",
            "PUT",
            data=made.manifest,
            headers={"Content-Type": MANIFEST_TYPE},
        )
        self._check(client, response.ok)
        got = response.headers.get("Docker-Content-Digest", made.blob.digest)
        if got != made.blob.digest:
            raise RegistryError(
                f"the registry keeps another manifest than was sent: {got}",
                where=f"{self.repository}:{tag}",
                hint="do not use what it has; ask the operator of it",
            )

    def _has(self, client: OrasClient, blob: Blob) -> bool:
        return bool(client.blob_exists({"digest": blob.digest}, self._container))

    def _upload(self, client: OrasClient, blob: Blob, file: Path) -> None:
        response = client.upload_blob(
            str(file),
            self._container,
            {"digest": blob.digest, "size": blob.size},
            do_chunked=blob.size > PIECE_BYTES,
            chunk_size=PIECE_BYTES,
        )
        self._check(client, response.ok)

    def _upload_bytes(self, client: OrasClient, blob: Blob, content: bytes) -> None:
        import tempfile

        # The client sends files only.
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            self._upload(client, blob, Path(file.name))

    def _download(self, client: OrasClient, blob: Blob, destination: Path, total: int) -> None:
        from artifacts.registry.oras_client import blob_blocks

        sha256, left = hashlib.sha256(), blob.size
        with (
            client.get_blob(self._container, blob.digest, stream=True) as response,
            destination.open("wb") as file,
        ):
            self._check(client, response.ok)
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise self._refusal(client, "it packs a file that must not be packed")
            for block in blob_blocks(response, blob.size):
                left -= len(block)
                if left < 0:  # more than the manifest says: no reason to fill the disk
                    break
                sha256.update(block)
                file.write(block)
                self._done += len(block)
                self._progress.advance("pull", self._done, total, "bytes")
        if f"sha256:{sha256.hexdigest()}" != blob.digest:
            raise RegistryError(
                "a file is not what the manifest says: its digest differs",
                where=f"{self.repository}@{blob.digest}",
                hint="pull again; if that does not help, ask the operator of the registry",
            )

    def _count_bytes(self, client: OrasClient, total: int) -> None:
        self._done = 0

        def count_sent(count: int) -> None:
            self._done += count
            self._progress.advance("push", min(self._done, total), total, "bytes")

        client.sent = count_sent

    def _check(self, client: OrasClient, answered: bool) -> None:
        if not answered:
            raise self._refusal(client, "it refused a request")

    def _refusal(self, client: OrasClient | None, reason: str) -> RegistryError:
        said = "; ".join(client.complaints) if client is not None else ""
        return RegistryError(
            f"the OCI registry failed: {said or reason}",
            where=self.repository,
            hint=f"`docker login {self._host}` where it wants a login that may write; "
            "--insecure where it speaks HTTP only. What was sent is not sent again",
        )

    @contextmanager
    def _connect(self) -> Iterator[OrasClient]:
        import requests
        from oras.logger import logger

        from artifacts.registry.oras_client import OrasClient, kind_of_login

        # It prints what goes wrong; we say it in our own words.
        logger.set_level(100)
        client: OrasClient | None = None
        try:
            kind = kind_of_login(self._host, insecure=self._insecure)
            client = OrasClient(self._host, insecure=self._insecure, auth=kind)
            client.auth.load_configs(self._container, _docker_configs())
            if kind == "basic" and not getattr(client.auth, "_basic_auth", None):
                raise RegistryError(
                    "the OCI registry wants a login",
                    where=self.repository,
                    hint=f"docker login {self._host}, or ORAS_USER and ORAS_PASS",
                )
            yield client
        except (requests.RequestException, ValueError) as error:
            raise self._refusal(client, str(error)) from error


def _no_repository(reference: str) -> UsageError:
    return UsageError(
        f"'{reference}' is not a repository of an OCI registry",
        where="HOST[:PORT]/REPOSITORY[:TAG]",
        hint="such as registry.example.com/models/smollm2:champion, localhost:5000/smollm2; a "
        "folder of this machine is oci:///FOLDER",
    )


def _docker_configs() -> list[str]:
    """Return more files in which `docker login` keeps logins."""
    folder = os.environ.get("DOCKER_CONFIG")
    file = Path(folder) / "config.json" if folder else None
    return [str(file)] if file is not None and file.is_file() else []
