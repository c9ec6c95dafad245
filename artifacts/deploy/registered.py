"""A registered version: its checked files, and its verdict from the evidence next to them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from artifacts.candidate import evidence_tags
from artifacts.deployable import Deployable
from artifacts.evidence.bundle import BundleVerdict
from artifacts.evidence.manifest import MANIFEST, find_changes, read_manifest
from artifacts.evidence.signing import check_with_key
from artifacts.evidence.verify import check_bundle, read_verdict
from artifacts.push import fetch
from artifacts.registry import MANIFEST_TAG, RUN_TAG, Registry, Version
from artifacts.version_folder import VERSIONS
from pipeline.environments.settings import Settings
from pipeline.stages.evidence import Evidence
from prepare.digest import FileDigests, digest_file
from prepare.errors import (
    CheckpointError,
    EvidenceError,
    RegistryError,
    UsageError,
    did_you_mean,
    raise_as,
)
from prepare.escape import clip
from prepare.events import Progress
from prepare.own_command import own_command
from recipes.checkpoints.weight_files import ADDED_LATER, ARCHIVE, BUNDLE, SIGNATURE
from recipes.policy import Policy
from recipes.schema import Recipe, ServingProfile
from recipes.workload import read_pinned

SHOWN = 100


@dataclass(frozen=True)
class RegisteredVersion:
    """A version whose files, tags and evidence were checked."""

    version: Version
    folder: Path
    bundle: BundleVerdict
    judged: Evidence

    @property
    def deployable(self) -> Deployable:
        return Deployable.of(self.judged)

    @property
    def policy(self) -> Policy:
        return self.judged.judge.parameters.policy

    @property
    def source(self) -> str:
        """The source's name, with its commit on the Hub; only the tags have a folder's path."""
        ref = self.version.tags.get("prepare.source.ref") or self.bundle.source.ref
        revision = self.bundle.source.revision
        is_folder = ref.startswith((".", "/", "~")) or Path(ref).exists()
        return f"{ref.partition('@')[0]}@{revision}" if revision and not is_folder else ref

    @property
    def recipe(self) -> Recipe:
        return Recipe(
            name=self.bundle.recipe,
            summary="registered weights",
            family=self.judged.judge.parameters.family,
            quantization=self.judged.weights.parameters.quantization,
        )

    @property
    def profile(self) -> ServingProfile:
        """Serving profile as used."""
        self.deployable.check_servable(f"{BUNDLE}/stages/sanity")
        judge = self.judged.judge.parameters
        assert judge.profile is not None
        if judge.profile.speculative is not None and judge.profile.speculative.model is not None:
            raise EvidenceError(
                "it was judged with a draft model, and its evidence does not say where that lies",
                where=f"{BUNDLE}/stages/sanity",
                hint="name a serving profile to judge with, whose key speculative.model does: "
                "--profile",
            )
        own = judge.policy.speed.workloads if judge.policy.speed is not None else {}
        workloads = {
            parameters.name: read_pinned(parameters.workload)
            for parameters in [measured.parameters for measured in self.judged.speed.values()][::-1]
            if "file" not in parameters.workload and parameters.name not in own
        }
        profile = judge.profile.model_copy(update={"workloads": workloads})
        return profile.apply_cpu_overrides(profile.cpu_overrides)


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
    version = model.find(model.aliases.get(wanted, wanted))
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
        f"{', '.join(known_version.version for known_version in model.versions) or 'none'}; "
        f"`{own_command('registry', name, '--history')}` shows what happened",
    )


def checked_folder(
    version: Version, weights: Path | None, settings: Settings, command: str
) -> Path:
    """Return `weights`, the version's source, or this store's folder of it, after checking it.

    `command` is the name of the one that needs the folder, for the error's hint.
    """
    digest = version.tags.get(MANIFEST_TAG, "")
    source = Path(version.source)
    places = [source, *([settings.store / VERSIONS / digest] if digest.isalnum() else [])]
    with raise_as(RegistryError, "the version's source is not a path", version.source):
        chosen = weights or next((place for place in places if place.is_dir()), None)
    if chosen is None:
        reference = f"{version.name}@{version.version}"
        pull = own_command("pull", reference, "FOLDER")
        words = [reference, "--weights", "FOLDER"]
        if command == "verify":
            words = ["FOLDER"]
        elif command == "gate":
            words = ["--baseline", *words, "--candidate", "URL"]
        elif command == "export":
            words = [reference, "DIR", "--for", "TARGET", "--weights", "FOLDER"]
        hint = f"{pull}, then {own_command(command, *words)}"
        if source.is_absolute():  # a pull would look there, too
            promote = own_command("promote", version.tags.get(RUN_TAG) or "RUN")
            hint = (
                f"`{promote}` makes them again, where the store of its run is; or name with "
                "--weights a folder that was pulled from a pushed copy"
            )
        raise RegistryError(
            "the version's files are not on this machine", where=version.source, hint=hint
        )
    folder = chosen.absolute()
    check_files(version, folder, settings.digests, public_key=settings.signing.public_key)
    return folder


def check_files(
    version: Version,
    folder: Path,
    digests: FileDigests | None = None,
    *,
    public_key: Path | None,
    added: tuple[str, ...] = ADDED_LATER,
) -> int:
    """Compare a folder with the registered digests, and the signature; return its number of files.

    Files in `added` are optional.
    """
    registered = version.tags.get(MANIFEST_TAG)
    bundle = folder / BUNDLE
    promote = own_command("promote", version.tags.get(RUN_TAG) or "RUN")
    if registered is None:
        raise RegistryError(
            "the version has no digest to check its files by",
            where=f"{version.name} version {version.version}, tag {MANIFEST_TAG}",
            hint="it was not registered by `prepare`, or a user changed it: delete the version in "
            f"MLflow, and `{promote}` registers it again",
        )
    if not (bundle / MANIFEST).is_file():
        raise RegistryError(
            "the folder has no evidence next to weights, so it is not the version's",
            where=str(bundle / MANIFEST),
            hint="name with --weights a folder that `prepare pull` made, or leave --weights out; "
            f"if the version's own folder was changed, `{promote}` in the store of its run",
        )
    changed = [f"{bundle / MANIFEST}: the file was changed (its digest is another)"]
    if digest_file(bundle / MANIFEST) == registered:
        manifest = read_manifest(bundle)
        digest = digests.digest if digests else digest_file
        changed = find_changes(bundle, manifest, has_weights=True, added=added, digest=digest)
    if changed:
        raise RegistryError(
            f"the files are not those that were judged: {clip(changed[0], 300)}",
            where=str(folder),
            hint="a user changed, added or removed a file; the verdict says nothing of these: "
            "restore or remove it, or pull the version again",
        )
    if public_key is not None:
        check_with_key(folder, public_key)
        signed = read_verdict(bundle).registered_name
        # A copy has its repository's address as its name.
        if "://" not in version.name and signed != version.name:
            raise EvidenceError(
                f"the folder was signed as a version of '{signed}', not of '{version.name}'",
                where=str(folder),
                hint="do not use it: a user registered it under another name",
            )
    withheld = not (folder / ARCHIVE).exists()  # of a copy without questions and answers
    return len(manifest.evidence_files) - withheld + len(manifest.model_files) + 1


def open_version(version: Version, folder: Path, *, trust_remote_code: bool) -> RegisteredVersion:
    """Read the evidence in a version's checked folder.

    EvidenceError if it does not give the verdict, RegistryError if an (untrusted) tag differs from
    it, CheckpointError for code without a user's consent.
    """
    bundle = folder / BUNDLE
    where = f"{version.name} version {version.version}"
    check = check_bundle(bundle)
    if check.faults:
        raise EvidenceError(
            f"the evidence does not give the verdict: {check.faults[0]}",
            where=str(bundle),
            hint=f"`{own_command('verify', str(bundle))}` names every difference; get the version "
            "again with `prepare pull`",
        )
    if check.inputs is None:
        raise EvidenceError(
            "this copy lacks the recorded answers, so its verdict cannot be computed again",
            where=str(bundle),
            hint="pull it from the registry, or from a copy of `prepare push --with-questions`",
        )
    changed = [
        f"{tag} says {_show(version.tags.get(tag))}, the evidence {_show(value)}"
        for tag, value in evidence_tags(check.inputs, check.verdict).items()
        if version.tags.get(tag) != value
    ]
    if changed:
        raise RegistryError(
            "the registry's tags are not what was judged: " + "; ".join(changed),
            where=where,
            hint="a user changed them after the promotion: check who may write to the registry, "
            "delete the version in MLflow, and `prepare promote` the run again",
        )
    if check.inputs.trust_remote_code and not trust_remote_code:
        raise CheckpointError(
            "it was judged with Python code that comes with the checkpoint, and serving it runs "
            "that code here",
            where=where,
            hint="read the *.py files next to its weights; where you trust them, add "
            "--trust-remote-code",
        )
    return RegisteredVersion(version, folder, check.verdict, check.inputs)


def check_new_folder(destination: Path) -> None:
    """Raise UsageError if it is there and not an empty folder."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(
            "the destination is there already, and not empty",
            where=str(destination),
            hint="name a new folder",
        )


def pull_version(
    fetch: Callable[[Path], Version],
    destination: Path,
    public_key: Path | None,
    required_tags: Mapping[str, str],
) -> tuple[Version, int]:
    """Copy a version into a new folder, which appears when it is complete.

    `fetch` fills an empty folder.
    """
    check_new_folder(destination)
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    for left in destination.parent.glob(f".{escape(destination.name)}.*.partial"):
        if not Path("/proc", left.name.split(".")[-2]).exists():  # its pull was killed
            shutil.rmtree(left, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        version = fetch(partial)
        for tag, value in required_tags.items():
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
            where=str(error.filename2 or error.filename or destination),
            hint="name a folder on a disk with room that you may write",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return version, files


def fetch_copy(source: str, folder: Path, progress: Progress, *, insecure: bool) -> Version:
    """Copy from hf:// or oci:// into an empty folder."""
    reference = fetch(source, folder, progress, insecure=insecure)
    name, _, digest = reference.rpartition("@")
    listed = folder / BUNDLE / MANIFEST
    tags = {MANIFEST_TAG: digest_file(listed)} if listed.is_file() else {}
    return Version(name, digest, (), reference, tags)


def _show(value: str | None) -> str:
    text = "nothing" if value is None else ascii(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
