"""Layers below the minimum SQNR of a recipe, and detection of outliers.

The floors are part of each kind in `recipes/quantizers`. With rounding to nearest the SQNR depends
little on the model. It varies more where an algorithm trades weight error for output error or
rescales columns. docs/explanation/limits.md has the underlying measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.errors import VerificationError
from pipeline.verification.comparison import LayerNoise
from recipes.quantization import Rounding

# dB below the median of the layers of its kind (q_proj, down_proj, ...).
OUTLIER_DB = 10.0
# Fraction of rows where compensation may leave a noisy piece: GPTQ moves errors to where outputs do
# not depend on them. Measured: up to 12 of 576 rows in one place.
MAX_ROW_FRACTION = 0.1
WORST = 5


@dataclass(frozen=True)
class LayerStats:
    """Row of the layer table."""

    name: str  # module name
    format: str  # weight format
    rows: int  # outputs
    columns: int  # inputs
    # SQNR of its weights; None if lossless.
    sqnr_db: float | None
    floor_db: float  # minimum SQNR

    @property
    def kind(self) -> str:
        return self.name.rpartition(".")[2]


def median_db(facts: Sequence[LayerStats]) -> float | None:
    """Return the median over lossy layers; None if there are none."""
    known = [fact.sqnr_db for fact in facts if fact.sqnr_db is not None]
    return statistics.median(known) if known else None


def worst_layers(facts: Sequence[LayerStats]) -> list[LayerStats]:
    """Return the five layers with the lowest SQNR, worst first."""
    lossy = (fact for fact in facts if fact.sqnr_db is not None)
    return sorted(lossy, key=lambda fact: fact.sqnr_db or 0.0)[:WORST]


def check_floor(facts: Sequence[LayerStats], floor: float, where: str) -> None:
    """Raise VerificationError for the worst layer below the floor."""
    worst = worst_layers(facts)
    if not worst or (worst[0].sqnr_db or 0.0) >= floor:
        return
    below = sum(fact.sqnr_db is not None and fact.sqnr_db < floor for fact in facts)
    raise VerificationError(
        f"the weights of '{worst[0].name}' have an SQNR of {worst[0].sqnr_db:.1f} dB, under the "
        f"floor of {floor:.0f} dB; the median of {len(facts)} layers is {median_db(facts):.1f} dB"
        + (f", and {below} are under the floor" if below > 1 else ""),
        where=where,
        hint="about 0 dB or less means wrong or missing weights: check how the variant was "
        "written; otherwise use more calibration data, or ignore the layer",
    )


def outliers(facts: Sequence[LayerStats]) -> list[tuple[LayerStats, float]]:
    """Return layers far below the median of their kind and format, with that median."""
    by_kind: dict[tuple[str, str], list[LayerStats]] = {}
    for fact in facts:
        by_kind.setdefault((fact.kind, fact.format), []).append(fact)
    found = []
    for alike in by_kind.values():
        middle = median_db(alike)
        found += [
            (fact, middle)
            for fact in alike
            if middle is not None
            and fact.sqnr_db is not None
            and fact.sqnr_db < middle - OUTLIER_DB
        ]
    return found


def check_pieces(fact: LayerStats, noise: LayerNoise, rounding: Rounding, where: str) -> None:
    """Raise VerificationError if pieces of rows differ from the source's weights."""
    beyond = noise.most_in_a_column > MAX_ROW_FRACTION * fact.rows
    if not noise.count or (rounding == "compensated" and not beyond):
        return
    row, column = noise.damaged[0]
    places = "1 place" if noise.count == 1 else f"{noise.count} places, the first"
    raise VerificationError(
        f"the weights of '{fact.name}' are not the source's in {places} in row {row} "
        f"from column {column} on: the difference there is as large as the weights",
        where=where,
        hint="the file is damaged, or the source has such outliers there that a whole group was "
        "rounded away; quantize again, and ignore the layer if it happens again",
    )
