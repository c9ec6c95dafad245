"""A folder of OCI image layouts as a model registry: `oci:///FOLDER`.

FOLDER/NAME is the layout of one model. The index lists version 3, a ModelPack manifest, as `v3`;
aliases are other names for it. `prepare-history.jsonl` has the history, one entry per line. A move
holds a lock in the layout's folder from the entry to the alias.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from artifacts.registry.folder_access import check_folder
from artifacts.registry.history import HistoryEntry
from artifacts.registry.journal import no_version
from artifacts.registry.model_pack import (
    ARTIFACT_TYPE,
    MANIFEST_TYPE,
    Blob,
    ModelPack,
    PackedFile,
    check_tags,
    checkpoint_config,
    files_in,
    pack,
    read_pack,
)
from artifacts.registry.oci_index import (
    APPLIED,
    LAST_VERSION,
    REF_NAME,
    blob_of,
    count_of,
    index_by_version,
    number_of,
    pointers,
    ref_name,
    version_tags,
)
from artifacts.registry.oci_layout import OciLayout
from artifacts.registry.registry import Registry, Version
from pipeline.core.errors import RegistryError, raise_as
from pipeline.core.untrusted.file import MEBIBYTE, read_regular
from pipeline.core.untrusted.text import clip

SCHEME = "oci://"
HISTORY_FILE = "prepare-history.jsonl"
HISTORY_BYTES = 64 * MEBIBYTE  # some 100,000 moves
LOCK_FILE = ".moves.lock"


class OciLayoutRegistry(Registry):
    """Versions, aliases and histories of models in OCI image layouts.

    Args:
        uri: `oci:///FOLDER`; the first registration creates the folder.

    Raises:
        RegistryError: the URI does not name an absolute folder.
    """

    patience_seconds = 0.0

    names_are_repositories = True

    def __init__(self, uri: str) -> None:
        self.folder = Path(uri.removeprefix(SCHEME))
        if not self.folder.is_absolute():
            raise RegistryError(
                "an OCI registry that aliases are moved in is a folder of this machine",
                where=uri,
                hint="--registry oci:///FOLDER, and `prepare push` sends a version of it to a "
                "registry of the network, which has no compare-and-swap for an alias",
            )
        self.uri = f"{SCHEME}{self.folder}"

    def names(self) -> list[str]:
        with self._explain_errors():
            if not self.folder.is_dir():
                return []
            found = [p.name for p in self.folder.iterdir() if OciLayout(p).exists()]
        return sorted(name for name in found if not name.startswith(".") and self.versions(name))

    def versions(self, name: str) -> list[Version]:
        with self._explain_errors():
            layout = self._layout(name)
            index = layout.read_index()
            described = index_by_version(index)
            pointing = pointers(index)
            return [
                Version(
                    name=name,
                    version=str(number),
                    aliases=tuple(sorted(a for a, v in pointing.items() if v == str(number))),
                    source=f"{self.uri}/{name}@{described[number]['digest']}",
                    tags=version_tags(layout, described[number]),
                )
                for number in sorted(described, reverse=True)
            ]

    def check_writable(self, name: str) -> None:
        self.versions(name)
        check_folder(self._layout(name).folder, self.uri)

    def register(self, name: str, folder: Path, tags: Mapping[str, str]) -> str:
        """Copy the folder into the layout, or reuse a version with the same tuple and evidence.

        A reused version's lost files are copied again.
        """
        check_tags(tags)
        with self._explain_errors():
            layout = self._layout(name)
            layout.folder.mkdir(parents=True, exist_ok=True)
            with _lock(layout):
                layout.make()
            with layout.open_for_writing() as partial:
                existing = self.find_same(name, tags)
                if existing is not None:
                    if not _is_whole(layout, self.pack_of(existing)):
                        _put_files(layout, folder, partial)
                    return existing.version
                files = _put_files(layout, folder, partial)
                made = pack(name, files, tags, checkpoint_config(folder))
                layout.put_bytes(made.config, partial)
                layout.put_bytes(made.manifest, partial)
                return self._add_version(layout, name, made)

    def set_tags(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        """Add or change tags of a version, without a change of its digest.

        Annotations of its index line override those of the manifest.
        """
        check_tags(tags)
        with self._explain_errors(), self.lock(name):
            layout = self._layout(name)
            index = layout.read_index()
            descriptor = index_by_version(index).get(number_of(version))
            if descriptor is None:
                raise no_version(self.uri, name, version)
            known = version_tags(layout, descriptor)
            changed = {key: value for key, value in tags.items() if known.get(key) != value}
            if changed:
                descriptor["annotations"] = descriptor.get("annotations", {}) | changed
                layout.write_index(index)

    def fetch(self, version: Version, folder: Path) -> None:
        with self._explain_errors():
            layout = self._layout(version.name)
            for file in self.pack_of(version).files:
                destination = folder / file.path
                destination.parent.mkdir(parents=True, exist_ok=True)
                layout.copy_out(file.blob, destination)

    def pack_of(self, version: Version) -> ModelPack:
        """Return a version's manifest and layers; raises RegistryError if it is damaged."""
        with self._explain_errors():
            layout = self._layout(version.name)
            descriptor = index_by_version(layout.read_index()).get(number_of(version.version))
            if descriptor is None:
                raise no_version(self.uri, version.name, version.version)
            manifest = layout.read_blob(blob_of(descriptor))
            return read_pack(manifest, layout.read_blob)

    def blob_path(self, name: str, blob: Blob) -> Path:
        """Return a blob's file; raises RegistryError if it is lost."""
        return self._layout(name).whole_blob(blob.digest)

    def blobs(self, name: str) -> set[str]:
        return self._layout(name).digests()

    # What the journal is kept by.

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        layout = self._layout(name)
        with ExitStack() as held:
            if layout.exists():
                with self._explain_errors():
                    held.enter_context(_lock(layout))
            yield

    def entries(self, name: str) -> list[HistoryEntry]:
        file = self._layout(name).folder / HISTORY_FILE
        with self._explain_errors():
            try:
                lines = read_regular(file, HISTORY_BYTES).splitlines()
            except FileNotFoundError:
                return []
            index = self._layout(name).read_index()
            # A number is given once, and kept where its version was deleted.
            newest = max([count_of(self._layout(name), LAST_VERSION), *index_by_version(index)])
        entries = []
        for place, line in enumerate(lines, start=1):
            try:
                entry = HistoryEntry.model_validate_json(line)
                for version in (v for v in entry.changes.values() if v is not None):
                    if not 0 < number_of(version) <= newest:
                        raise ValueError(f"there never was a version {ascii(version)[:40]}")
                entries.append(entry)
            except ValueError as error:
                why = clip(str(error), 500)
                raise RegistryError(
                    f"line {place} of the history of '{name}' is damaged: {why}",
                    where=str(file),
                    hint="a user changed it; delete that line to leave the entry out",
                ) from error
        return sorted(entries, key=lambda entry: entry.number)

    def append(self, name: str, entry: HistoryEntry) -> None:
        with self._explain_errors(), self.lock(name):
            layout = self._layout(name)
            kept = self.entries(name)
            # Not a number again that was carried out once, even where lines were deleted.
            last = max([self.read_applied(name), *(each.number for each in kept)])
            lines = [*kept, entry.model_copy(update={"number": last + 1})]
            text = "".join(f"{line.model_dump_json()}\n" for line in lines)
            layout.replace(HISTORY_FILE, text.encode())

    def read_applied(self, name: str) -> int:
        with self._explain_errors():
            return count_of(self._layout(name), APPLIED)

    def mark_applied(self, name: str, number: int) -> None:
        with self._explain_errors(), self.lock(name):
            layout = self._layout(name)
            index = layout.read_index()
            index["annotations"] = index.get("annotations", {}) | {APPLIED: str(number)}
            layout.write_index(index)

    def aliases(self, name: str) -> dict[str, str]:
        with self._explain_errors():
            return pointers(self._layout(name).read_index())

    def set_alias(self, name: str, alias: str, version: str | None) -> None:
        with self._explain_errors(), self.lock(name):
            layout = self._layout(name)
            index = layout.read_index()
            kept = [each for each in index["manifests"] if ref_name(each) != alias]
            if version is not None:
                descriptor = index_by_version(index).get(number_of(version))
                if descriptor is None:
                    raise no_version(self.uri, name, version)
                kept.append({**descriptor, "annotations": {REF_NAME: alias}})
            if kept != index["manifests"]:
                layout.write_index({**index, "manifests": kept})

    def has_version(self, name: str, version: str) -> bool:
        with self._explain_errors():
            return number_of(version) in index_by_version(self._layout(name).read_index())

    def _add_version(self, layout: OciLayout, name: str, made: ModelPack) -> str:
        with self.lock(name):
            index = layout.read_index()
            number = 1 + max([count_of(layout, LAST_VERSION), *index_by_version(index)])
            descriptor = made.blob.descriptor(
                MANIFEST_TYPE, artifactType=ARTIFACT_TYPE, annotations={REF_NAME: f"v{number}"}
            )
            index["manifests"] = [*index["manifests"], descriptor]
            # A number is given once, even when the version is deleted.
            index["annotations"] = index.get("annotations", {}) | {LAST_VERSION: str(number)}
            layout.write_index(index)
        return str(number)

    def _layout(self, name: str) -> OciLayout:
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise RegistryError(
                f"'{name}' cannot be the name of a model here: it is to be a folder's",
                where=self.uri,
                hint="give a name (--name) without '/' that does not begin with '.'",
            )
        return OciLayout(self.folder / name)

    def _explain_errors(self) -> AbstractContextManager[None]:
        return raise_as(
            RegistryError,
            "the OCI layout cannot be read or written",
            self.folder,
            "--registry oci:///FOLDER with a folder that you may write, and that has room",
        )


def _lock(layout: OciLayout) -> AbstractContextManager[object]:
    from filelock import FileLock

    return FileLock(layout.folder / LOCK_FILE, is_singleton=True)


def _put_files(layout: OciLayout, folder: Path, partial: Path) -> list[PackedFile]:
    return [PackedFile(path, layout.put_file(file, partial)) for path, file in files_in(folder)]


def _is_whole(layout: OciLayout, made: ModelPack) -> bool:
    for file in made.files:
        path = layout.blob_path(file.blob.digest)
        if not path.is_file() or path.stat().st_size != file.blob.size:
            return False
    return True
