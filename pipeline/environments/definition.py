"""Definition of a managed environment.

Its identity is a digest of everything that decides what is installed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.environments.managed import LOCKS, ManagedEnvironment
from prepare.errors import UsageError
from prepare.gpus import visible_gpus
from prepare.plugins import ENVIRONMENTS, find_plugin, plugin_names
from recipes.accelerator import Accelerator

SOURCE_BUILDS = LOCKS / "source-builds.txt"
"""Lock of what builds packages that have no wheel."""
LOCKED_PYTHON = (3, 11)
"""Python version of all environments, which the locks were resolved for."""

BUILD_REVISION = 2
"""Increment this when the build of an unchanged definition changes."""

_IDENTITY_CHARACTERS = 16


def detect_accelerator() -> Accelerator:
    """Return CUDA if a child process would see a GPU, or CPU."""
    return Accelerator.CUDA if visible_gpus() else Accelerator.CPU


WEIGHT_READER = "quantize"
"""Environment of what reads weights: it checks, converts and dequantizes them."""

LOAD_GENERATOR = "serve"
"""Environment of the load generator: vLLM's readers draw its prompts, for every engine."""

SUITE_ASKER = "evaluate"
"""Environment of what lays suites out and asks them."""

RUN_ENVIRONMENTS = (WEIGHT_READER, LOAD_GENERATOR, SUITE_ASKER)
"""Environments that `prepare doctor --build` builds; others are built where they are needed."""


def environment_names() -> list[str]:
    """Return every declared environment; those of RUN_ENVIRONMENTS are first."""
    others = [name for name in plugin_names(ENVIRONMENTS) if name not in RUN_ENVIRONMENTS]
    return [*RUN_ENVIRONMENTS, *others]


@dataclass(frozen=True)
class EnvironmentDefinition:
    """All that decides an environment's contents."""

    key: str  # name of the environment in folders and messages, such as ``serve-cpu``
    name: str  # which environment it is
    accelerator: Accelerator  # requested accelerator
    lock: Path  # requirements file that pins every package, with hashes
    plugins: tuple[Path, ...]  # source folders of prepare's packages, installed last
    # Modules that must be importable, also in a replacement interpreter.
    modules: tuple[str, ...]
    disk_bytes: int  # free disk for a build, without the download cache
    is_shared: bool = False  # the same for every accelerator

    @property
    def pins(self) -> Mapping[str, str]:
        return parse_lock(self.lock.read_text(encoding="utf-8"))

    @property
    def needs_cuda_torch(self) -> bool:
        is_cuda = self.accelerator is Accelerator.CUDA and not self.is_shared
        return is_cuda and "torch" in self.pins

    @property
    def identity(self) -> str:
        described = {
            "lock": sorted(self.pins.items()),
            "plugins": [_digest_sources(folder) for folder in self.plugins],
            "revision": BUILD_REVISION,
            "python": [sys.implementation.name, *LOCKED_PYTHON],
            "platform": sysconfig.get_platform(),
            "key": self.key,
        }
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def define(name: str, accelerator: Accelerator) -> EnvironmentDefinition:
    """Return the definition of a managed environment.

    UsageError: it is not declared, or has no lock, or a malformed one.
    """
    declared = _declared(name)
    key = name if declared.is_shared else f"{name}-{accelerator}"
    lock = declared.locks / f"{key}.txt"
    cure = f"pin every package with its hashes: uv pip compile --generate-hashes -o {lock.name}"
    if not lock.is_file():
        raise UsageError(
            f"the environment '{name}' has no lock for {accelerator}", where=str(lock), hint=cure
        )
    definition = EnvironmentDefinition(
        key=key,
        name=name,
        accelerator=accelerator,
        lock=lock,
        plugins=declared.sources.get(accelerator, ()),
        modules=declared.modules,
        disk_bytes=declared.disk_bytes.get(accelerator, 0),
        is_shared=declared.is_shared,
    )
    try:
        definition.pins  # noqa: B018  # reads the lock
    except ValueError as error:
        raise UsageError(
            f"the lock of the environment '{name}' is malformed: {error}",
            where=str(lock),
            hint=cure,
        ) from error
    return definition


def definitions(accelerators: Iterable[Accelerator]) -> list[EnvironmentDefinition]:
    """Return the valid definitions of every declared environment."""
    valid = []
    for name in environment_names():
        for accelerator in accelerators:
            with suppress(UsageError):
                valid.append(define(name, accelerator))
    return valid


def environments_folder(home: Path) -> Path:
    """Return the folder of all managed environments."""
    return home / "environments"


def environment_folder(home: Path, definition: EnvironmentDefinition) -> Path:
    """Return the folder of one environment."""
    return environments_folder(home) / folder_name(definition.key, definition.identity)


def folder_name(key: str, identity: str) -> str:
    """Return the name of an environment's folder."""
    return f"{key}-{identity[:_IDENTITY_CHARACTERS]}"


def _declared(name: str) -> ManagedEnvironment:
    """Return the declaration of this name; UsageError if there is none."""
    try:
        plugin = find_plugin(ENVIRONMENTS, name)
    except LookupError:
        raise UsageError(
            f"unknown environment '{name}'",
            hint=f"use one of: {', '.join(environment_names())}; a package declares another in "
            f"its entry points, group {ENVIRONMENTS}",
        ) from None
    declared = plugin.load()
    if not isinstance(declared, ManagedEnvironment):
        raise UsageError(
            f"the plugin '{name}' is not a ManagedEnvironment of pipeline.environments.managed",
            where=plugin.words,
            hint=f"install a version of {plugin.package} that fits, or remove it",
        )
    return declared


@cache
def parse_lock(text: str) -> Mapping[str, str]:
    """Return versions by normalized name, of ``name==version --hash=sha256:...`` lines.

    Hashes decide nothing: they refuse another file of that version. ValueError: another line.
    """
    pins = {}
    for line in significant_lines(text):
        pin = re.fullmatch(
            r"([A-Za-z0-9][\w.-]*)={2,3}([^\s;=]+)((?:\s+--hash=sha256:[0-9a-f]{64})*)", line
        )
        if pin is None:
            raise ValueError(f"a line is not a pin: {line[:200]!r}")
        if not pin[3]:
            raise ValueError(f"a line has no hashes: {line[:200]!r}")
        pins[normalize(pin[1])] = pin[2]
    return pins


def significant_lines(text: str) -> list[str]:
    """Return lines without comments and blanks; continued ones are joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def normalize(name: str) -> str:
    """Normalize a distribution name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _digest_sources(folder: Path) -> list[list[str]]:
    return [
        [str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in sorted(folder.rglob("*"))
        if path.suffix in {".py", ".pth", ".toml"}
    ]
