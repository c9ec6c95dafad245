"""A registered version's files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from artifacts.evidence.manifest import MANIFEST, find_changes, read_manifest
from artifacts.evidence.signing import check_with_key
from artifacts.evidence.verify import find_bundle, read_verdict
from artifacts.push import fetch
from artifacts.registry import MANIFEST_TAG, Registry, Version
from artifacts.release import VERSIONS
from pipeline.core.digest import FileDigests, digest_file
from pipeline.core.errors import EvidenceError, RegistryError, UsageError, did_you_mean
from pipeline.core.escape import clip
from pipeline.core.events import Progress
from recipes.checkpoints.weight_files import ADDED_LATER, ARCHIVE, BUNDLE, SIGNATURE


def folder_of(version: Version, weights: Path | None, store: Path, command: str) -> Path:
    """Return `weights`, the version's source, or this store's folder of it.

    `command` ends the error's hint.
    """
    digest = version.tags.get(MANIFEST_TAG, "")
    places = [Path(version.source), *([store / VERSIONS / digest] if digest.isalnum() else [])]
    found = weights or next((each for each in places if each.is_dir()), None)
    if found is None:
        reference = f"{version.name}@{version.version}"
        raise RegistryError(
            "the version's files are not on this machine",
            where=version.source,
            hint=f"prepare pull {reference} FOLDER, then {command.format(reference=reference)}",
        )
    return found.absolute()


def find_version(registry: Registry, reference: str) -> Version:
    """Return the version NAME@ALIAS or NAME@NUMBER."""
    name, mark, wanted = reference.rpartition("@")
    if not (mark and name and wanted):
        raise UsageError(
            f"'{reference}' names no version",
            where="NAME@ALIAS",
            hint="write the model's name, '@', and an alias or a version's number: "
            "smollm2-135m@champion, smollm2-135m@3",
        )
    model = registry.existing(name)
    number = model.aliases.get(wanted, wanted)
    version = model.find(number)
    if version is not None:
        return version
    moves = [move for move in model.history if move.alias == wanted]
    raise UsageError(
        f"version {moves[-1].version} of '{name}', to which '{wanted}' pointed, was deleted"
        if moves
        else f"'{name}' has no version or alias '{wanted}'",
        where=registry.uri,
        hint=f"{did_you_mean(wanted, sorted(model.aliases))}its aliases: "
        f"{', '.join(sorted(model.aliases)) or 'none'}; versions: "
        f"{', '.join(each.version for each in model.versions) or 'none'}; "
        f"`prepare registry {name} --history` shows what happened",
    )


def check_files(
    version: Version,
    folder: Path,
    digests: FileDigests | None = None,
    *,
    public_key: Path | None,
    added: tuple[str, ...] = ADDED_LATER,
) -> int:
    """Compare a folder with the registered digests; return its number of files.

    Files in `added` are optional.
    """
    registered, bundle = version.tags.get(MANIFEST_TAG), folder / BUNDLE
    hint = (
        f"it was not registered by `prepare`, or a user changed it: `prepare promote "
        f"{version.tags.get('prepare.run') or 'RUN'}` registers it again"
    )
    if registered is None:
        raise RegistryError(
            f"version {version.version} of '{version.name}' has no digest to check its files by",
            where=f"tag {MANIFEST_TAG}",
            hint=hint,
        )
    if not (bundle / MANIFEST).is_file():
        raise RegistryError(
            "the evidence that the version names is not next to its weights",
            where=str(bundle / MANIFEST),
            hint=hint,
        )
    found = digest_file(bundle / MANIFEST)
    if found != registered:
        raise RegistryError(
            f"the files are not those that were judged: the digest of their list is {found[:12]}, "
            f"registered is {clip(registered, 12)}",
            where=str(bundle / MANIFEST),
            hint="a user replaced them; the verdict says nothing of these",
        )
    manifest = read_manifest(bundle)
    digest = digests.digest if digests else digest_file
    changed = find_changes(bundle, manifest, has_weights=True, added=added, digest=digest)
    if changed:
        raise RegistryError(
            f"the files are not those that were judged: {clip(changed[0], 300)}",
            where=str(folder),
            hint="a user changed, added or removed a file; the verdict says nothing of these",
        )
    check_signed(version, folder, public_key)
    withheld = not (folder / ARCHIVE).exists()  # of a copy without questions and answers
    return len(manifest.evidence_files) - withheld + len(manifest.model_files) + 1


def check_signed(version: Version, folder: Path, public_key: Path | None) -> None:
    """Check that the key's owner signed this version."""
    if public_key is None:
        return
    check_with_key(folder, public_key)
    bundle = find_bundle(folder)
    if bundle is None:
        raise EvidenceError(
            "the folder is signed, and has no evidence",
            where=str(folder),
            hint="promote its run again with --sign",
        )
    signed = read_verdict(bundle).registered_name
    # A copy has its repository's address as its name.
    if "://" not in version.name and signed != version.name:
        raise EvidenceError(
            f"the folder was signed as a version of '{signed}', not of '{version.name}'",
            where=str(folder),
            hint="do not use it: a user registered it under another name",
        )


def pull_version(
    fetch: Callable[[Path], Version],
    destination: Path,
    public_key: Path | None,
    required_tags: Mapping[str, str] | None = None,
) -> tuple[Version, int]:
    """Copy a version into a new folder, which appears when it is complete.

    `fetch` fills an empty folder.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(
            "the destination is there already, and not empty",
            where=str(destination),
            hint="name a new folder",
        )
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        version = fetch(partial)
        for tag, value in (required_tags or {}).items():
            if version.tags.get(tag) != value:
                raise RegistryError(
                    f"this is another version than required: its tag {tag} is "
                    f"{clip(version.tags.get(tag, 'missing'), 12)}, required is {clip(value, 12)}",
                    where=f"{version.name} version {version.version}",
                    hint="export the version again; if it did not change, a user changed its tags",
                )
        files = check_files(version, partial, public_key=public_key, added=(SIGNATURE,))
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
    return version, files


def pull_copy(
    source: str,
    destination: Path,
    public_key: Path | None,
    required_tags: Mapping[str, str],
    progress: Progress,
    *,
    insecure: bool,
) -> tuple[Version, int]:
    """Copy from hf:// or oci://, as `pull_version`."""

    def fetch_copy(folder: Path) -> Version:
        reference = fetch(source, folder, progress, insecure=insecure)
        name, _, digest = reference.rpartition("@")
        listed = folder / BUNDLE / MANIFEST
        tags = {MANIFEST_TAG: digest_file(listed)} if listed.is_file() else {}
        return Version(name, digest, (), reference, tags)

    return pull_version(fetch_copy, destination, public_key, required_tags)
