"""Which parts of a suite's questions would be seen if they were lost, before any work."""

from __future__ import annotations

from collections.abc import Mapping

from eval_gates.quality_result import MAX_LISTED
from eval_gates.statistics.comparison import Comparison
from eval_gates.statistics.lost_groups import count_seen


def words_on_parts(
    comparison: Comparison,
    level: float,
    sizes: Mapping[str, int],
    named: str,
    unit: str,
    fall: tuple[float, float] = (1.0, 0.0),
) -> str:
    """Return of which parts a whole loss would be seen, as a sentence.

    `level` is that of all of them together; `sizes` are their questions, sessions or clusters by
    name; `fall` is the mean score before and after the loss.
    """
    by_size = sorted(sizes, key=lambda name: (-sizes[name], name))
    shown = count_seen(comparison, level, [sizes[name] for name in by_size], *fall)
    if not shown:
        return f"none of {len(sizes):,} {named} is in enough {unit} for its loss to be seen"
    words = f"of {len(sizes):,} {named}, the loss of one is mostly seen for {shown:,}"
    hidden = by_size[shown:]
    if not hidden:
        return words
    listed = ", ".join(f"{name} in {sizes[name]:,}" for name in hidden[:MAX_LISTED])
    more = f" and {len(hidden) - MAX_LISTED:,} more" if len(hidden) > MAX_LISTED else ""
    return f"{words}; in too few {unit}: {listed}{more}"
