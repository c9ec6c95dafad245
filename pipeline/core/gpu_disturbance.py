"""What disturbed GPUs between two moments, as the driver reports it.

A power limit also applies in production, so it does not count; heat and power brakes do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.core.gpus import query_driver

MIN_SHARE = 0.01
"""Share of the time from which on a slowdown counts."""
# `nvidia-smi -q -x`, drivers 575 and later.
_GPU = re.compile(r"<gpu id=.*?</gpu>", re.DOTALL)
_UUID = re.compile(r"<uuid>(\S+)</uuid>")
_SLOWED = re.compile(r"<clocks_event_reasons_counters_(\w+)>(\d+) us<")
_PROCESS = re.compile(r"<pid>(\d+)</pid>\s*<type>[^<]*C[^<]*</type>")
_REASONS = {
    "sw_therm": "slowed down by heat",
    "hw_therm": "slowed down by heat, in hardware",
    "hw_power": "slowed down by a power brake",
}
_CAPPED = "sw_power"


@dataclass(frozen=True)
class GpuState:
    """One GPU at one moment."""

    uuid: str
    slowed_us: dict[str, int]  # since the driver was loaded, by the first 8 letters of the reason
    processes: frozenset[str]  # that compute, if the driver shows them


def gpu_states(uuids: Sequence[str]) -> list[GpuState]:
    """Return the states of these GPUs; [] if there are none or the driver does not report."""
    answer = query_driver("-q", "-x", "-i", ",".join(uuids)) if uuids else None
    return [
        GpuState(
            uuid[1],
            {name[:8]: int(us) for name, us in _SLOWED.findall(part)},
            frozenset(_PROCESS.findall(part)),
        )
        for part in _GPU.findall(answer or "")
        if (uuid := _UUID.search(part))
    ]


def disturbances(
    before: Sequence[GpuState], after: Sequence[GpuState], seconds: float
) -> Iterator[dict[str, str]]:
    """Yield what happened in that time, as fields of `Interference` (load_run.py)."""
    then = {state.uuid: state for state in before}
    for now in after:
        if (was := then.get(now.uuid)) is None:
            continue
        grown = {name: us - was.slowed_us.get(name, us) for name, us in now.slowed_us.items()}
        for name, words in _REASONS.items():
            share = grown.get(name, 0) / 1e6 / max(seconds, 1e-3)
            # Some drivers count a power limit as heat.
            if share > MIN_SHARE and grown[name] != grown.get(_CAPPED):
                what = f"{now.uuid} was {words} for {100 * min(share, 1.0):.0f} % of the time"
                yield {"kind": "throttled", "what": what}
        if new := sorted(now.processes - was.processes):
            what = f"process {', '.join(new)} began to use {now.uuid}"
            yield {"kind": "other_process", "what": what[:300]}
