"""GGUF by llama.cpp: one kind of file decides the number type of each tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from recipes.quantization import Quantization
from recipes.weight_format import GGUF, WeightFormat

# Minimum SQNR of a correct tensor by ggml's type, in dB. The demo's lowest have 43.7 (Q8_0), 34.7
# (Q6_K), 25.5 (Q5_1), 19.7 (Q4_0) and 16.0 (Q3_K). Its shapes take no Q2_K.
FLOORS_DB = {
    **{"Q8_0": 35.0, "Q6_K": 28.0, "Q5_K": 21.0, "Q5_0": 21.0, "Q5_1": 21.0},
    **{"Q4_K": 15.0, "Q4_0": 15.0, "Q3_K": 9.0, "Q2_K": 4.0},
}


@dataclass(frozen=True)
class GgufType:
    """One kind of file."""

    bits: int  # of most weights, without scales
    lowest: str  # ggml's type of the coarsest tensors
    group: int  # columns that share a scale


TYPES = {
    "Q8_0": GgufType(8, "Q8_0", 32),
    "Q6_K": GgufType(6, "Q6_K", 16),
    "Q5_K_M": GgufType(5, "Q5_K", 32),
    "Q4_K_M": GgufType(4, "Q4_K", 32),
    "Q3_K_M": GgufType(3, "Q3_K", 16),
    "Q2_K": GgufType(2, "Q2_K", 16),
}


class GgufQuantization(Quantization):
    """GGUF by llama.cpp, rounded without an importance matrix; only llama.cpp serves it."""

    kind: Literal["gguf"]
    type: Literal["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K"] = Field(
        description="llama.cpp's name of the kind of file; it decides each tensor's number type"
    )
    ignore: list[str] = Field(default=[], max_length=0)
    calibration: None = None

    environment: ClassVar[str] = "serve-llamacpp"
    weights: ClassVar[str] = GGUF

    @property
    def worker(self) -> str:
        return "pipeline.workers.quantize_gguf"

    @property
    def is_streamed(self) -> bool:
        """A tensor at a time, without transformers; the file is begun again after a kill."""
        return True

    @property
    def keeps_stacked_experts(self) -> bool:
        """The converter stacks experts itself."""
        return True

    @property
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        """Return the format of most matrices; groups need not divide their columns."""
        form = TYPES[self.type]
        return (WeightFormat(GGUF, form.bits, "int", "group", group=form.group),)

    @property
    def sqnr_floor_db(self) -> float:
        return FLOORS_DB[TYPES[self.type].lowest]

    def format_description(self, group_size: int | None) -> str:
        return f"GGUF {self.type}, {TYPES[self.type].bits}-bit weights mostly"

    @property
    def method_description(self) -> str:
        return "Rounded by llama.cpp (ggml_quantize_chunk), without an importance matrix."
