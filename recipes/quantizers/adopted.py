"""Kind of variants that are quantized by other programs or the server."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from recipes.quantization import Quantization, Rounding
from recipes.weight_format import PLAIN, WeightFormat

MADE_ELSEWHERE = "adopted"  # in place of the environment that quantizes


class AdoptedQuantization(Quantization):
    """Weights that others quantized, or the source's own, which the server quantizes."""

    kind: Literal["adopted"]
    ignore: list[str] = Field(default=[], max_length=0)
    calibration: None = None
    origin: str = Field(description="Hub id, or name of the folder; the source's for a served one")
    revision: str = Field("", description="commit on the Hub")
    digest: str = Field(description="of the checkpoint's files' digests")
    license: str = Field("", description="as its model card names it")
    producer: str = Field("", description="quantization method and program, by its config.json")
    layout: str = Field(description="formats of its weights, or why they cannot be compared")
    bits: int = Field(ge=1, le=64, description="of a weight, in the coarsest format")
    number: Literal["int", "float"] = Field(description="type of a weight, in the coarsest format")
    served_with: dict[str, bool | int | float | str | list[str]] = Field(
        default={}, description="engine arguments that make a variant of the source's own weights"
    )

    quantizes: ClassVar[bool] = False
    keeps_types: ClassVar[bool] = False

    @property
    def is_source(self) -> bool:
        """Whether the weights are the source's own."""
        return bool(self.served_with)

    @property
    def worker(self) -> str:
        raise NotImplementedError("others quantized it")

    @property
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        return ()

    @property
    def sqnr_floor_db(self) -> float:
        return _floor_db(self.bits, self.number)

    def floor_of(self, module: str, form: WeightFormat) -> float:
        """Implement :meth:`Quantization.floor_of`."""
        return _floor_db(form.bits, form.number)

    @property
    def rounding(self) -> Rounding:
        return "compensated"

    def bytes_on_cpu(self, size: int, *, wide: bool) -> int:
        name = self.layout.partition(",")[0]
        form = WeightFormat(name, self.bits, self.number, "group")
        return form.bytes_on_cpu(size, wide=wide)

    def format_description(self, group_size: int | None) -> str:
        return self.layout

    @property
    def made_by(self) -> str:
        """Maker of the weights."""
        if self.is_source:
            return "the source's maker"
        place = f"{self.origin}@{self.revision}" if self.revision else self.origin
        return f"{place} ({self.producer})" if self.producer else place

    @property
    def method_description(self) -> str:
        if not self.is_source:
            method = "Rounded or trained" if self.layout.startswith(PLAIN) else "Quantized"
            return f"{method} elsewhere: {self.made_by}."
        arguments = " ".join(
            f"--{name}" if value is True else f"--{name} {words_of(value)}"
            for name, value in self.served_with.items()
        )
        return f"The weights are the source's own, served with {arguments}."


def _floor_db(bits: int, number: str) -> float:
    """Return a limit below every recipe's of the same bits."""
    if bits > 8:
        # From a GGUF file of any type, the 2-bit ones too. No floor detects training, which may
        # change weights less than 4-bit rounding.
        return 5.0
    return (20.0 if number == "float" else 10.0) if bits == 8 else 5.0


def words_of(value: bool | int | float | str | list[str]) -> str:
    """Return a value as on a command line."""
    return " ".join(value) if isinstance(value, list) else str(value)


def family_of(form: WeightFormat) -> Literal["fp8", "int8", "int4", "fp4"]:
    """Return the family of margins; fp8's, the strictest, for 16 bits."""
    if form.name == PLAIN or form.bits > 8:
        return "fp8"
    if form.bits > 4:
        return "int8" if form.number == "int" else "fp8"
    return "int4" if form.number == "int" else "fp4"
