"""Differences between a recorded verdict and the one computed from its evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from prepare.errors import PrepareError

# Raised by records that do not fit together.
CONTRADICTIONS = (ValueError, LookupError, ArithmeticError, TypeError, AttributeError)
UNREADABLE = (*CONTRADICTIONS, OSError, PrepareError)
# Sums of floating-point numbers differ in the last digits on other machines.
RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class VariantCheck:
    """Recorded and recomputed verdicts of a variant."""

    recipe: str
    kept: str
    computed: str | None
    answers: int
    differences: tuple[str, ...]


def find_differing_values(path: str, kept: Any, computed: Any) -> list[str]:
    """Return the differing paths below `path`."""
    if isinstance(kept, dict) and isinstance(computed, dict):
        return [
            line
            for name in sorted(kept.keys() | computed.keys())
            for line in find_differing_values(f"{path}.{name}", kept.get(name), computed.get(name))
        ]
    if isinstance(kept, list | tuple) and isinstance(computed, list | tuple):
        if len(kept) != len(computed):
            return [f"{path[1:]}: kept {len(kept)} of them, computed {len(computed)}"]
        return [
            line
            for number, (ours, theirs) in enumerate(zip(kept, computed, strict=True))
            for line in find_differing_values(f"{path}[{number}]", ours, theirs)
        ]
    if isinstance(kept, float) and isinstance(computed, float):
        same = math.isclose(kept, computed, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)
    else:
        same = kept == computed
    return [] if same else [f"{path[1:]}: kept {kept!r}, computed {computed!r}"]
