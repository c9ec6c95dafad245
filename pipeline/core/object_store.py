"""Object store for key-value pairs and files: S3, Google Cloud Storage, Azure, through obstore.

Credentials come from the environment, in each cloud's own variables. Temporary failures are retried
for RETRY_TIMEOUT_S and logged once.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from pipeline.core.errors import StoreError, UsageError
from pipeline.core.untrusted.names import is_plain_path
from pipeline.core.untrusted.record import MAX_BYTES

SCHEMES = ("s3", "gs", "az", "file")
EXTRA = "prepare-model[object-store]"
RETRY_TIMEOUT_S = 120.0
MAX_PAUSE_S = 5.0
_CHUNK_BYTES = 64 * 1024 * 1024
_PROBE = ".probe"
MAX_OBJECTS = 1_000_000
"""Limit of one listing."""
# Messages for a full disk, and for permanent errors: a name that is too long, a directory or file
# in the way, a read-only disk. They are not outages.
_FULL = re.compile(r"\(os error (28|122)\)|StorageFull|507 Insufficient Storage|QuotaExceeded")
_LASTING = re.compile(r"\(os error (20|21|22|27|30|36|40)\)")

Answer = TypeVar("Answer")


def is_url(address: str) -> bool:
    """Return whether a store's address is an object store instead of a directory."""
    return "://" in address


def check_url(url: str, where: str) -> str:
    """Return the URL without a trailing slash.

    Raises:
        UsageError: it is not an object store's URL, or the required library is not installed.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise UsageError(
            f"{ascii(parts.scheme)[:40]} is not the scheme of a store's URL",
            where=where,
            hint=f"known: {', '.join(f'{scheme}://' for scheme in SCHEMES)}; or a folder",
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "a store's URL cannot have credentials or options",
            where=where,
            hint="credentials come from the environment, as AWS_ACCESS_KEY_ID",
        )
    if not (parts.netloc or parts.scheme == "file") or not (parts.netloc or parts.path.strip("/")):
        raise UsageError(
            f"the store's URL names no {'folder' if parts.scheme == 'file' else 'bucket'}",
            where=where,
            hint=f"write {parts.scheme}://BUCKET/PREFIX",
        )
    try:
        import obstore  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "an object store needs a library that is not installed",
            where=where,
            hint=f"pip install '{EXTRA}'",
        ) from error
    return url.rstrip("/")


@dataclass(frozen=True)
class ObjectInfo:
    """Facts about an object in a listing."""

    written: datetime  # by the store's clock
    size: int  # bytes


_loggers: list[Callable[[str], None]] = []


@contextmanager
def log_outages(log: Callable[[str], None]) -> Iterator[None]:
    """Send messages about outages to `log` instead of standard error.

    Args:
        log: is called from any thread, once for each outage.
    """
    _loggers.append(log)
    try:
        yield
    finally:
        _loggers.remove(log)


def _log(text: str) -> None:
    if _loggers:
        _loggers[-1](text)
    else:
        print(text, file=sys.stderr)


class ObjectStore:
    """Objects below one URL; implements KeyValueStore.

    Raises:
        StoreError: from each method: the store is unreachable, or rejects the request.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "",
        *,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
    ) -> None:
        self.url = url
        self._prefix = prefix
        self._retry_timeout_s = retry_timeout_s

    def below(self, prefix: str) -> ObjectStore:
        below = ObjectStore(
            self.url, f"{self._prefix}{prefix}/", retry_timeout_s=self._retry_timeout_s
        )
        below.__dict__["_client"] = self._client
        return below

    def check(self) -> None:
        """Raise UsageError if the bucket does not exist or is not readable."""
        from obstore.exceptions import BaseError

        try:
            next(iter(self._client.list(self._name("runs"), chunk_size=1)), None)
        except (BaseError, OSError, ValueError) as error:
            raise UsageError(
                f"the store cannot be opened: {_reason(error)}",
                where=self.url,
                hint="correct --store, PREPARE_STORE or the key 'store' of the settings file; the "
                "bucket must exist, and credentials come from the environment",
            ) from error

    def put_if_absent(self, name: str, content: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def create() -> bool:
            try:
                self._client.put(self._name(name), content, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

        # If the first response was lost, the retry finds our own object.
        return self._retry(create) or self.get(name) == content

    def put(self, name: str, content: bytes) -> None:
        """Implement KeyValueStore; a reader sees the complete value or none."""
        self._retry(lambda: self._client.put(self._name(name), content, use_multipart=False))

    def get(self, name: str) -> bytes | None:
        def get() -> bytes | None:
            found = self._open(name, MAX_BYTES)
            return bytes(found.bytes()) if found is not None else None

        return self._retry(get)

    def names(self, folder: str = "") -> list[str]:
        return sorted(self.list_objects(folder))

    def list_objects(self, folder: str = "") -> dict[str, ObjectInfo]:
        """Return the objects in the folder and its subfolders, by name.

        Names that are not plain paths are not prepare's, and are left out.
        """
        start = self._name(f"{folder}/" if folder else "")

        def find() -> dict[str, ObjectInfo]:
            found, seen = dict[str, ObjectInfo](), 0
            for some in self._client.list(start or None):
                seen += len(some)
                if seen > MAX_OBJECTS:
                    raise self._unreadable_error(
                        f"more than {MAX_OBJECTS:,} objects, the limit", start
                    )
                for each in some:
                    name = each["path"].removeprefix(start)
                    if each["path"].startswith(start) and is_plain_path(name):
                        found[name] = ObjectInfo(each["last_modified"], each["size"])
            return found

        return {name: each for name, each in self._retry(find).items() if not name.startswith(".")}

    def remove(self, name: str) -> None:
        def remove() -> None:
            try:
                self._client.delete(self._name(name))
            except FileNotFoundError:
                return

        self._retry(remove)

    def age(self, name: str) -> float | None:
        """Implement KeyValueStore; a new probe object gives the store's time."""
        if (written := self._written_at(name)) is None:
            return None
        self.put(_PROBE, b"")
        now = self._written_at(_PROBE)
        return (now - written).total_seconds() if now is not None else None

    def has(self, name: str) -> bool:
        return self._written_at(name) is not None

    def upload(self, file: Path, name: str) -> None:
        self._retry(lambda: self._client.put(self._name(name), file, chunk_size=_CHUNK_BYTES))

    def download(self, name: str, file: Path, limit: int) -> bool:
        """Write the object, of at most `limit` bytes, to a file; return False if absent."""

        def download() -> bool:
            found = self._open(name, limit)
            if found is None:
                return False
            with file.open("wb") as out:
                for chunk in found.stream(min_chunk_size=8 * 1024 * 1024):
                    out.write(chunk)
            return True

        return self._retry(download)

    @cached_property
    def _client(self) -> Any:
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        options: dict[str, Any] = {
            "retry_config": {"max_retries": 1, "retry_timeout": timedelta(seconds=5)},
            "client_options": {
                "connect_timeout": "4s",
                "timeout": "1h",
                # A local endpoint may be configured without TLS.
                "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"),
            },
        }
        if self.url.startswith("file:"):
            options = {"mkdir": True}
        try:
            return from_url(self.url, **options)
        except (BaseError, ValueError) as error:
            raise UsageError(
                f"the store's URL cannot be used: {_reason(error)}",
                where=self.url,
                hint="write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX",
            ) from error

    def _name(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _open(self, name: str, limit: int) -> Any:
        """Return the object before reading its content; None if absent.

        Raises:
            StoreError: it is larger than `limit` bytes, or not a regular file.
        """
        if self.url.startswith("file:"):  # opening a pipe blocks, and /dev/zero is endless
            path = Path(unquote(urlsplit(self.url).path), self._name(name))
            try:
                if not stat.S_ISREG(path.stat().st_mode):
                    raise self._unreadable_error("no regular file", name)
            except OSError:
                pass  # reported below
        try:
            found = self._client.get(self._name(name))
        except FileNotFoundError:
            return None
        if found.meta["size"] > limit:
            raise self._unreadable_error(f"larger than {limit:,} bytes, the limit", name)
        return found

    def _unreadable_error(self, what: str, name: str) -> StoreError:
        return StoreError(
            f"an object in the store is invalid: it is {what}",
            where=f"{self.url}/{self._name(name)}",
            hint="find out who created it, and remove it",
        )

    def _written_at(self, name: str) -> Any:
        def head() -> Any:
            try:
                return self._client.head(self._name(name))["last_modified"]
            except FileNotFoundError:
                return None

        return self._retry(head)

    def _retry(self, action: Callable[[], Answer]) -> Answer:
        from obstore.exceptions import (
            BaseError,
            InvalidPathError,
            NotSupportedError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        refusals = (
            PermissionDeniedError,
            UnauthenticatedError,
            NotSupportedError,
            InvalidPathError,
            ValueError,
        )
        until, pause = time.monotonic() + self._retry_timeout_s, 0.5
        told = False
        while True:
            try:
                return action()
            except refusals as error:
                raise self._failure_error("refuses", error) from error
            except BaseError as error:
                if _FULL.search(str(error)):
                    raise self._full_disk_error(error) from error
                if _LASTING.search(str(error)):
                    raise self._failure_error("refuses", error) from error
                if time.monotonic() + pause > until:
                    raise self._failure_error("cannot be reached", error) from error
                if not told:
                    _log(f"the store {self.url} does not respond; retrying")
                    told = True
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_S)

    def _full_disk_error(self, error: Exception) -> StoreError:
        return StoreError(
            f"the disk under the store is full: {_reason(error)}",
            where=self.url,
            hint="free some space there; the same command continues from the finished stages",
        )

    def _failure_error(self, what: str, error: Exception) -> StoreError:
        return StoreError(
            f"the store {what}: {_reason(error)}",
            where=self.url,
            hint="check that it exists and that the credentials in the environment are valid; "
            "the same command continues from the finished stages",
        )


def _reason(error: Exception) -> str:
    return " ".join(str(error).partition("\n\nDebug source")[0].split())[:500]
