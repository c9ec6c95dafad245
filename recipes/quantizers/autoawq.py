"""AWQ by AutoAWQ, in a separate environment."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from recipes.quantization import InGroups, Rounding, groups_of
from recipes.weight_format import AWQ_GEMM, WeightFormat


class AutoAwqQuantization(InGroups):
    """AWQ by AutoAWQ itself, in its own checkpoint format (GEMM): 4 bits with zero points."""

    kind: Literal["autoawq"]
    clip_search: bool = Field(
        False, description="search for clipping of the weights too: about ten times slower"
    )

    environment: ClassVar[str] = "quantize-autoawq"
    keeps_types: ClassVar[bool] = False  # AutoAWQ converts unquantized tensors to float16
    carries_mtp: ClassVar[bool] = False

    @property
    def worker(self) -> str:
        return "recipes.quantizers.autoawq_worker"

    @property
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        return self.in_each_size(
            lambda size: WeightFormat(AWQ_GEMM, 4, "int", "group", group=size, symmetric=False)
        )

    @property
    def sqnr_floor_db(self) -> float:
        return 7.0

    @property
    def rounding(self) -> Rounding:
        return "rescaled"

    def format_description(self, group_size: int | None) -> str:
        return f"4-bit weights{groups_of(group_size)}, with zero points, 16-bit activations"

    @property
    def method_description(self) -> str:
        return "AWQ (arXiv 2306.00978), by AutoAWQ."
