"""x86 CPU features that quantization and serving depend on.

``PREPARE_CPU_FEATURES=avx2`` makes a whole run behave as on a machine with no other feature:
recorded facts, the engine's kernel library, the kernels of torch and oneDNN.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.core.errors import UsageError

VARIABLE = "PREPARE_CPU_FEATURES"
NONE = "none"
FLAGS: dict[str, frozenset[str]] = {
    "avx2": frozenset({"avx2"}),
    # torch requires all of these before it reports AVX-512.
    "avx512f": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    "avx512_bf16": frozenset({"avx512_bf16"}),
    "amx": frozenset({"amx_tile"}),
}
"""Flags in /proc/cpuinfo that each feature requires, in addition to those before it."""
FEATURES = tuple(FLAGS)


def cpu_features(
    facts: str | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return the CPU's features, or the subset that the environment selects."""
    flags = parse_flags(Path("/proc/cpuinfo").read_text() if facts is None else facts)
    found: list[str] = []
    for name, needed in FLAGS.items():
        # AMX implies AVX512_BF16 in hardware, but a virtual machine may hide any flag.
        if not needed <= flags:
            break
        found.append(name)
    wanted = requested_features(environ)
    if wanted is None:
        return tuple(found)
    if lacking := [name for name in wanted if name not in found]:
        raise UsageError(
            f"this CPU has no {lacking[0]}",
            where=VARIABLE,
            hint=f"use features from: {', '.join(found) or NONE}",
        )
    return wanted


def limiting_variables(
    facts: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return variables that restrict a worker or server to the selected features."""
    wanted = requested_features(environ)
    if wanted is None or wanted == cpu_features(facts, {}):
        return {}
    limits = {VARIABLE: ",".join(wanted) or NONE}
    if "avx512f" not in wanted:
        return {
            **limits,
            "ATEN_CPU_CAPABILITY": "avx2" if wanted else "default",
            "ONEDNN_MAX_CPU_ISA": "AVX2" if wanted else "SSE41",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2" if wanted else "SSE4_2",
        }
    with_bf16 = "avx512_bf16" in wanted
    return {**limits, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16" if with_bf16 else "AVX512_CORE"}


def requested_features(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the features in VARIABLE, in the order of FEATURES; None if it is not set."""
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return None
    words = {word.strip() for word in text.split(",")} - {NONE}
    wanted = tuple(name for name in FEATURES if name in words)
    if words - set(FEATURES) or wanted != FEATURES[: len(wanted)]:
        lists = [",".join(FEATURES[:length]) for length in range(1, len(FEATURES) + 1)]
        raise UsageError(
            f"'{text}' is not a list of CPU features",
            where=VARIABLE,
            hint=f"write one of: {NONE}; {'; '.join(lists)}",
        )
    return wanted


def parse_flags(facts: str) -> frozenset[str]:
    """Return the flags of the first CPU in the text of /proc/cpuinfo."""
    for line in facts.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()
