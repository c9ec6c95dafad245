"""A registered version as something to deploy: are its files whole, does this machine fit it.

A verdict is about a tuple: weights, engine, serving arguments, hardware. Here its members are read
back from a version's tags and held against files and against this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from artifacts.manifest import NOT_OURS, SIGNATURE, plain_files
from artifacts.registry.registry import FILES_TAG, TUPLE_TAG, WEIGHTS_TAG, Registry, Version
from pipeline.digest import FileDigests, digest_file, digest_json
from pipeline.environments.environment import Accelerator, Environment
from pipeline.errors import RegistryError, UsageError
from pipeline.hardware import hardware
from pipeline.recheck_record import RecheckRecord, rechecks_of
from pipeline.serving import ServingArguments
from pipeline.weight_files import weights_digest

ENGINE_SECONDS = 120
ASK_ENGINE = "import vllm; print('engine-version', vllm.__version__)"


class HoldsFiles(Protocol):
    """What has a version's files: a registry of models, or a repository of an OCI registry."""

    def fetch(self, version: Version, folder: Path) -> None:
        """Copy the version's files into that folder, which exists and is empty."""


@dataclass(frozen=True)
class JudgedTuple:
    """What a version was judged as, from its tags."""

    engine_version: str
    environment: str
    arguments: ServingArguments
    hardware: dict[str, Any]
    trust_remote_code: bool

    @classmethod
    def of(cls, version: Version) -> JudgedTuple:
        """Read the tags; raises RegistryError where the version was not registered by prepare."""
        try:
            serving = json.loads(version.tags["prepare.serving"])
            return cls(
                engine_version=version.tags["prepare.engine_version"],
                environment=version.tags["prepare.environment.serve"],
                arguments=ServingArguments(serving["engine_arguments"], serving["environment"]),
                hardware=json.loads(version.tags["prepare.hardware"]),
                trust_remote_code=version.tags.get("prepare.trust_remote_code") == "true",
            )
        except (KeyError, ValueError, TypeError) as error:
            raise RegistryError(
                f"version {version.version} of '{version.name}' does not tell how it was judged: "
                f"{error}",
                where=f"{version.name} version {version.version}, tags prepare.*",
                cure="it was not registered by `prepare`, or its tags were changed",
            ) from error

    def as_rechecked(self, record: RecheckRecord) -> JudgedTuple:
        """The tuple that a recheck measured, of the same weights."""
        try:
            serving = record.members["serving"]
            return JudgedTuple(
                engine_version=record.members["engine_version"],
                environment=record.members["environment.serve"],
                arguments=ServingArguments(serving["engine_arguments"], serving["environment"]),
                hardware=record.members["hardware"],
                trust_remote_code=self.trust_remote_code,
            )
        except (KeyError, TypeError) as error:
            raise RegistryError(
                f"what a recheck left does not tell what it measured: {error}",
                where=f"tag prepare.recheck, run {record.run}",
                cure="run `prepare recheck` again",
            ) from error

    def differences(self, environment: str) -> list[str]:
        """Members in which this machine differs, in words, the engine's own version left out.

        Args:
            environment: identity of the environment that would serve.
        """
        here = hardware(str(self.hardware["accelerator"]))
        pairs: list[tuple[str, Any, Any]] = [
            ("environment 'serve'", self.environment, environment),
            *(
                (f"hardware, {key}", self.hardware.get(key), here.get(key))
                for key in sorted(self.hardware.keys() | here.keys())
            ),
        ]
        return [f"{name}: judged {was}, here {now}" for name, was, now in pairs if was != now]


def accepted_tuples(version: Version) -> list[JudgedTuple]:
    """The tuples for which the version's verdict holds: as judged, then as rechecked.

    A recheck of the judged tuple itself that did not stand takes its place away.

    Raises:
        RegistryError: tags do not tell how it was judged, or are damaged.
    """
    judged = JudgedTuple.of(version)
    rechecks = rechecks_of(version)
    refuted = {each.tuple_digest for each in rechecks if not each.stands}
    return [
        *([judged] if version.tags.get(TUPLE_TAG) not in refuted else []),
        *(judged.as_rechecked(each) for each in rechecks if each.stands),
    ]


def folder_of(version: Version, weights: Path | None, command: str) -> Path:
    """The folder of a version's files.

    Args:
        version: as registered.
        weights: folder that `prepare pull` made; None: the version's own source.
        command: of prepare, that asks; for the cure.

    Raises:
        RegistryError: its files are not on this machine.
    """
    if weights is None and not Path(version.source).is_dir():
        reference = f"{version.name}@{version.version}"
        raise RegistryError(
            "the version's files are not on this machine",
            where=version.source,
            cure=f"prepare pull {reference} FOLDER, then {command.format(reference=reference)}",
        )
    return (weights or Path(version.source)).absolute()


def engine_version_of(serve: Environment) -> str:
    """The engine's version, as it tells it itself; raises RegistryError when it does not."""
    try:
        answer = subprocess.run(
            [str(serve.python), "-c", ASK_ENGINE],
            capture_output=True,
            text=True,
            timeout=ENGINE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RegistryError(
            f"the engine does not tell its version: {error}",
            where=str(serve.python),
            cure="`prepare env doctor` checks the environments",
        ) from error
    # vLLM says things of its own on standard output.
    lines = [line for line in answer.stdout.splitlines() if line.startswith("engine-version ")]
    return lines[-1].split()[1] if lines else "unknown"


def accelerator_of(judged: JudgedTuple) -> Accelerator:
    """Which kind of machine it was judged on."""
    return Accelerator(judged.hardware["accelerator"])


def find_version(registry: Registry, reference: str) -> Version:
    """The version that NAME@ALIAS or NAME@NUMBER names; moves left unfinished are finished before.

    Raises:
        UsageError: it is not of that form, or there is none.
    """
    name, mark, wanted = reference.rpartition("@")
    if not (mark and name and wanted):
        raise UsageError(
            f"'{reference}' names no version",
            where="NAME@ALIAS",
            cure="write the model's name, '@', and an alias or a version's number: "
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
        cure=f"its aliases: {', '.join(known) or 'none'}; versions: "
        f"{', '.join(v.version for v in versions)}"
        if versions
        else f"known: {', '.join(registry.names()) or 'nothing yet'}",
    )


def check_files(version: Version, folder: Path, digests: FileDigests | None = None) -> int:
    """Hold a folder's files against the digests that were registered; returns how many.

    Raises:
        RegistryError: they are not the files that were judged.
        CheckpointError: the folder has no weights, or a file cannot be read.
    """
    if WEIGHTS_TAG not in version.tags:
        raise RegistryError(
            f"version {version.version} of '{version.name}' has no digest to check its files by",
            where=f"tag {WEIGHTS_TAG}",
            cure="it was not registered by `prepare`, or its tags were changed",
        )
    found = {WEIGHTS_TAG: weights_digest(folder, digests.of if digests else digest_file)}
    # Versions registered before there was this tag have the weights' alone.
    if FILES_TAG in version.tags:
        found[FILES_TAG] = digest_of_other_files(folder)
    words = {WEIGHTS_TAG: "weights", FILES_TAG: "other files (config, tokenizer, card, evidence)"}
    for tag, digest in found.items():
        if version.tags[tag] != digest:
            raise RegistryError(
                f"the {words[tag]} are not those that were judged: their digest is "
                f"{digest[:12]}, registered is {version.tags[tag][:12]}",
                where=str(folder),
                cure="somebody changed, added or removed a file; the verdict says nothing of these",
            )
    return sum(path.is_file() for path in folder.rglob("*"))


def pull_version(registry: HoldsFiles, version: Version, destination: Path) -> int:
    """Copy the version's files into a new folder, which appears when they are whole.

    Returns:
        how many files.

    Raises:
        UsageError: the folder is there already.
        RegistryError: the files cannot be had, or are not those that were judged.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(
            "the destination is there already, and not empty",
            where=str(destination),
            cure="name a new folder",
        )
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        registry.fetch(version, partial)
        files = check_files(version, partial)
        if destination.exists():
            destination.rmdir()
        partial.rename(destination)
    except OSError as error:
        raise RegistryError(
            f"the files cannot be copied: {error.strerror or error}",
            where=str(error.filename or destination),
            cure="name a folder on a disk with room that you may write",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return files


def digest_of_other_files(folder: Path) -> str:
    """Digest of names and contents of every file but the weights and what is added later.

    Raises:
        EvidenceError: there is something that is neither a file nor a folder.
    """
    return digest_json(
        [
            [path, digest_file(file)]
            for path, file in plain_files(folder, (SIGNATURE, *NOT_OURS))
            if file.suffix != ".safetensors"
        ]
    )
