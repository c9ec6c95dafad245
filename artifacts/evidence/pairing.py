"""Whose answers a verdict compares: a variant's, with those of the one baseline that it came after.

Every stage of a side names the server's check that it came after, and a variant's answers name the
baseline's that they followed. So answers of the baseline itself, or of another variant that passed,
cannot stand in a variant's place, though each is what its own key says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.core.stage_record import StageRecord
from pipeline.stages.speed import ROLE

# Roles of a judge stage, by side: `again` is the baseline, asked a second time.
_SIDES = {"baseline": ("baseline.", "again."), "candidate": ("candidate.",)}
_SERVER, _WEIGHTS = "coherence", "weights"


def mixed_sides(judge: StageRecord, found: Mapping[str, StageRecord]) -> Iterator[str]:
    """In what the stages that were judged are not of one baseline and one variant, in words.

    `found` are the judge stage's inputs by role; those that are gone are reported elsewhere.
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
