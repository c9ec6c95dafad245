"""Checks that a verdict compares one variant with the baseline before it.

Each stage names its server's coherence check, and a variant's answers name the baseline's. No other
answers can therefore replace a variant's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.core.stage_record import StageRecord
from pipeline.stages.speed import ROLE

# Roles of a judge stage, by side: `again` is the baseline, asked a second time.
_SIDES = {"baseline": ("baseline.", "again."), "candidate": ("candidate.",)}
_SERVER, _WEIGHTS = "coherence", "weights"


def mixed_sides(judge: StageRecord, found: Mapping[str, StageRecord]) -> Iterator[str]:
    """Yield judged stages that belong to another baseline or variant.

    `found` are the judge stage's inputs by role, without missing ones.
    """
    for side, beginnings in _SIDES.items():
        stages = [record for role, record in found.items() if role.startswith(beginnings)]
        for role in (_SERVER, _WEIGHTS):
            named = {record.inputs[role].key if role in record.inputs else "" for record in stages}
            if len(named) > 1:
                yield f"{side}: its stages do not depend on the same '{role}'"
            for name, record in found.items():
                measured = record.inputs.get(side) if name.startswith(ROLE) else None
                if role == _SERVER and measured is not None and {measured.key} != named:
                    yield f"{name}: it measured another {side} than was judged"
    for role, record in found.items():
        side, _, suite = role.partition(".")
        for other in ("baseline", "questions"):
            wanted = judge.inputs.get(f"{other}.{suite}")
            if side in _SIDES and other in record.inputs and record.inputs[other] != wanted:
                yield f"{role}: it followed other '{other}' than were judged with it"
