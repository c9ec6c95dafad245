"""Numerical comparisons, and the findings of `recipes/weights/check_weights_worker.py`.

Stage and worker run in two environments, so both cross as plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recipes.weight_format import WeightFormat


@dataclass(frozen=True)
class WeightComparison:
    """The tensors of a source and a variant whose numbers must fit.

    Attributes:
        source: folder of the checkpoint.
        variant: folder of the variant.
        layers: quantized modules that can be dequantized, with their format.
        kept: tensors of both that are not quantized.
        merged: heads that must equal the embedding, as (side, name, embedding of the source).
        scales: the variant's scales of a KV cache.
        rescaled: whether columns were scaled, and the layers before them by the inverse; None if
            the norms decide.
        rounds: whether an unquantized tensor of another type may be rounded.
    """

    source: str
    variant: str
    layers: dict[str, WeightFormat] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    merged: tuple[tuple[str, str, str], ...] = ()
    scales: tuple[str, ...] = ()
    rescaled: bool | None = False
    rounds: bool = False

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> WeightComparison:
        """Return the comparison of a worker's specification, by `dataclasses.asdict`."""
        layers = plain["layers"].items()
        forms = {
            module: WeightFormat(**{**form, "block": form["block"] and tuple(form["block"])})
            for module, form in layers
        }
        return cls(**{**plain, "layers": forms})


# Runs the worker on a comparison, and returns its findings.
Compare = Callable[[WeightComparison], Mapping[str, Any]]


@dataclass(frozen=True)
class LayerCheck:
    """A quantized layer; the worker finds the values from `sqnr_db` on.

    Attributes:
        rows: outputs.
        columns: inputs.
        floor_db: minimum SQNR.
        sqnr_db: SQNR of its weights; None if lossless.
        damaged: first few (row, first column) of pieces whose noise is as large as the weights.
        most_in_a_column: the largest number of damaged rows in one column of pieces.
        count: damaged pieces.
    """

    name: str
    format: str
    rows: int
    columns: int
    floor_db: float
    sqnr_db: float | None = None
    damaged: tuple[tuple[int, int], ...] = ()
    most_in_a_column: int = 0
    count: int = 0
