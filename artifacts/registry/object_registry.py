"""An object store as a model registry: `store+s3://bucket/prefix`; gs, az and file alike.

Layout, below the URL::

    registry/<name>/versions/<number>.json        a version: its files by digest, and its tags
    registry/<name>/tags/<version>.<count>.json   tags that were added to it, or changed
    registry/<name>/history/<number>.json         an entry of the history
    blobs/<sha256>                                content of files, each once

A store has its blobs there, too, so what it holds already is not sent a second time.

Nothing is ever written again: every object is created, if there is none of its name, which is what
every store can do for one of several who try. So an entry is the compare-and-swap of an alias. Its
number is the one after the last that its writer had seen: of two writers one finds that taken, and
looks again. Aliases are what the entries say and lie nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from artifacts.plain_files import plain_files
from artifacts.registry.history import HistoryEntry, replay
from artifacts.registry.journal import no_version
from artifacts.registry.registry import Registry, Version
from pipeline.core.errors import RegistryError, StoreError, UsageError
from pipeline.core.foreign.record import parse_record
from pipeline.core.foreign.text import clip
from pipeline.core.object_store import ObjectStore, check_url
from pipeline.core.origin import Blob, Files, fetch_blob, give_blob
from pipeline.core.record import Record

SCHEME = "store+"
FOLDER = "registry"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
NUMBER = re.compile(r"(\d+)(?:\.(\d+))?\.json")

Shape = TypeVar("Shape", bound=Record)


class KeptVersion(Record):
    """A version, as it was registered."""

    schema_version: int = Field(1, description="of this record")
    files: Files = Field(description="the checkpoint's, with its card and its evidence")
    tags: dict[str, str]


class AddedTags(Record):
    """Tags of a version that were added to it, or changed."""

    tags: dict[str, str]


class ObjectRegistry(Registry):
    """Versions and histories of models in an object store.

    Args:
        uri: `store+` and the store's URL.

    Raises:
        RegistryError: the URL is none, or the library is missing.
    """

    patience_seconds = None

    def __init__(self, uri: str) -> None:
        self.uri = uri
        with self._explain_errors():
            self._objects = ObjectStore(check_url(uri.removeprefix(SCHEME), uri))
        self._kept: dict[str, bytes] = {}

    def names(self) -> list[str]:
        with self._explain_errors():
            found = self._objects.names(FOLDER)
        return sorted({name.partition("/")[0] for name in found if "/versions/" in name})

    def versions(self, name: str) -> list[Version]:
        with self._explain_errors():
            aliases = self.aliases(name)
            tags = self._all_added(name)
            numbers = sorted(self._numbers(name, "versions"), reverse=True)
            kept = {number: self._version(name, number) for number in numbers}
        return [
            Version(
                name=name,
                version=str(number),
                aliases=tuple(sorted(a for a, v in aliases.items() if v == str(number))),
                source=f"{self._objects.url}/{_version(name, number)}",
                tags={**version.tags, **tags.get(number, {})},
            )
            for number, version in kept.items()
            if version is not None
        ]

    def files_of(self, version: Version) -> Files:
        """What the version has; raises RegistryError where it is gone."""
        with self._explain_errors():
            kept = self._version(version.name, _number(version.version))
        if kept is None:
            raise no_version(self.uri, version.name, version.version)
        return kept.files

    def check_writable(self, name: str) -> None:
        """Look whether the store can be opened; whether it lets us write, only a write shows."""
        with self._explain_errors():
            _check_name(name, self.uri)
            self._objects.check()

    def register(self, name: str, folder: Path, tags: Mapping[str, str]) -> str:
        """Make a version of the folder, or find the one of the same tuple and evidence.

        Content that the store has is not sent again; what it has lost is.
        """
        with self._explain_errors():
            _check_name(name, self.uri)
            files = {p: give_blob(self._objects, file) for p, file in list(plain_files(folder))}
            content = KeptVersion(files=files, tags=dict(tags)).model_dump_json().encode()
            while True:
                # Before looking: who registers the same after that has this number.
                number = self._last_number(name) + 1
                if (existing := self.find_same(name, tags)) is not None:
                    return existing.version
                if self._objects.create(_version(name, number), content):
                    return str(number)

    def set_tags(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        with self._explain_errors():
            if not self.has_version(name, version):
                raise no_version(self.uri, name, version)
            number = _number(version)
            content = AddedTags(tags=dict(tags)).model_dump_json().encode()
            count = 1 + max((c for n, c in self._added(name) if n == number), default=0)
            while not self._objects.create(_added(name, number, count), content):
                count += 1

    def fetch(self, version: Version, folder: Path) -> None:
        """Write the version's files into that folder, which exists and is empty; checks digests."""
        with self._explain_errors():
            for path, blob in self.files_of(version).items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                fetch_blob(self._objects, blob, folder / path)

    def blobs_in_use(self) -> dict[str, Blob]:
        """Every content that a version has, by digest."""
        found: dict[str, Blob] = {}
        for name in self.names():
            for version in self.versions(name):
                found |= {blob.sha256: blob for blob in self.files_of(version).values()}
        return found

    # What the journal is kept by.

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Nothing: whose entry comes first is the store's to say."""
        return nullcontext()

    def entries(self, name: str) -> list[HistoryEntry]:
        with self._explain_errors():
            numbers = sorted(self._numbers(name, "history"))
            found = {n: self._read(_entry(name, n), HistoryEntry) for n in numbers}
        return [e.model_copy(update={"number": n}) for n, e in found.items() if e is not None]

    def append(self, name: str, entry: HistoryEntry) -> None:
        """Add the entry as the next after the one that it was made after, if nobody has."""
        content = entry.model_dump_json(exclude={"number"}).encode()
        with self._explain_errors():
            _check_name(name, self.uri)
            self._objects.create(_entry(name, entry.after + 1), content)

    def read_applied(self, name: str) -> int:
        """Of the last entry that holds: they are the aliases."""
        return replay(self.entries(name)).last

    def mark_applied(self, name: str, number: int) -> None:
        """Nothing has to be remembered."""

    def aliases(self, name: str) -> dict[str, str]:
        return dict(replay(self.entries(name)).aliases)

    def set_alias(self, name: str, alias: str, version: str | None) -> None:
        """Nothing is set: the entry has moved it."""

    def has_version(self, name: str, version: str) -> bool:
        return _number(version) in self._numbers(name, "versions")

    def _last_number(self, name: str) -> int:
        """The highest that was ever given, as far as is known, also where it was deleted since."""
        promoted = [v for e in self.entries(name) for v in e.changes.values() if v is not None]
        given = self._numbers(name, "versions"), (n for n, _ in self._added(name))
        return max([0, *map(_number, promoted), *given[0], *given[1]])

    def _version(self, name: str, number: int) -> KeptVersion | None:
        return self._read(_version(name, number), KeptVersion)

    def _all_added(self, name: str) -> dict[int, dict[str, str]]:
        """By version, the tags that were added; of one key the last one's."""
        tags: dict[int, dict[str, str]] = {}
        for number, count in sorted(self._added(name)):
            added = self._read(_added(name, number, count), AddedTags)
            tags.setdefault(number, {}).update(added.tags if added is not None else {})
        return tags

    def _added(self, name: str) -> Iterator[tuple[int, int]]:
        for found in self._matches(name, "tags"):
            if found[2]:
                yield int(found[1]), int(found[2])

    def _numbers(self, name: str, what: str) -> set[int]:
        return {int(found[1]) for found in self._matches(name, what) if not found[2]}

    def _matches(self, name: str, what: str) -> Iterator[re.Match[str]]:
        with self._explain_errors():
            names = self._objects.names(f"{FOLDER}/{name}/{what}") if NAME.fullmatch(name) else []
        return (found for each in names if (found := NUMBER.fullmatch(each)))

    def _read(self, name: str, shape: type[Shape]) -> Shape | None:
        """What was put there; None where it is gone. It never changes, so it is asked for once."""
        content = self._kept.get(name) or self._objects.get(name)
        if content is None:
            return None
        self._kept[name] = content
        try:
            return parse_record(content, shape)
        except ValueError as error:
            raise RegistryError(
                f"what the registry holds is damaged: {clip(str(error), 500)}",
                where=f"{self._objects.url}/{name}",
                cure="somebody changed it; delete that object to leave it out",
            ) from error

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except (StoreError, UsageError) as error:
            raise RegistryError(
                f"the registry cannot be used: {error.what}",
                where=self.uri,
                cure="--registry store+s3://BUCKET/PREFIX (gs://, az://, or file:///FOLDER) of a "
                "bucket that is there; credentials come from the environment, as "
                f"AWS_ACCESS_KEY_ID. {error.cure}",
            ) from error
        except OSError as error:
            raise RegistryError(
                f"a file cannot be read or written: {error.strerror or error}",
                where=str(error.filename or self.uri),
                cure="see that there is room, and that it may be read and written",
            ) from error


def _check_name(name: str, uri: str) -> None:
    if not NAME.fullmatch(name):
        raise RegistryError(
            f"{ascii(name)[:100]} cannot be the name of a model here",
            where=uri,
            cure="give a name (--name) of letters, digits, '.', '_' and '-', 96 at most",
        )


def _number(version: str) -> int:
    """Of a version; 0, which none has, where it is no number."""
    return int(version) if version.isascii() and version.isdecimal() else 0


def _version(name: str, number: int) -> str:
    return f"{FOLDER}/{name}/versions/{number:06d}.json"


def _added(name: str, number: int, count: int) -> str:
    return f"{FOLDER}/{name}/tags/{number:06d}.{count:06d}.json"


def _entry(name: str, number: int) -> str:
    return f"{FOLDER}/{name}/history/{number:06d}.json"
