"""What this machine's x86 CPU can do, as far as quantizing and serving depend on it.

``PREPARE_CPU_FEATURES=avx2`` has a whole run work as on a machine that has no more than that: the
facts that are recorded, the engine's library of kernels, and what torch and oneDNN compute with.
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
    # All that torch asks for before it says that there is AVX-512.
    "avx512f": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    "avx512_bf16": frozenset({"avx512_bf16"}),
    "amx": frozenset({"amx_tile"}),
}
"""Flags of /proc/cpuinfo that a feature takes, by its name; each feature needs those before it."""
FEATURES = tuple(FLAGS)


def cpu_features(
    facts: str | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """The features that the CPU has, or is to be used as if it had no others.

    Args:
        facts: text of /proc/cpuinfo; None for this machine's.
        environ: variables, of which VARIABLE names the features, with commas between, or 'none'.

    Raises:
        UsageError: the variable names something that is no feature, or that the CPU lacks.
    """
    flags = parse_flags(Path("/proc/cpuinfo").read_text() if facts is None else facts)
    found: list[str] = []
    for name, needed in FLAGS.items():
        # AMX without AVX512_BF16 there is not, but a virtual machine may hide what it likes.
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
            cure=f"name some of: {', '.join(found) or NONE}",
        )
    return wanted


def limiting_variables(
    facts: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Variables of a worker or server that is to do with fewer features than the CPU has.

    Empty where nothing is limited.
    """
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
    """What the variable names, in the order of FEATURES; None where it is not set.

    Raises:
        UsageError: it names something that is no feature, or one without those that it needs.
    """
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
            cure=f"write one of: {NONE}; {'; '.join(lists)}",
        )
    return wanted


def parse_flags(facts: str) -> frozenset[str]:
    """What the first processor can do, as Linux names it in the text of /proc/cpuinfo."""
    for line in facts.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()
