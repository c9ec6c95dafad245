"""Presets of compressed-tensors, rounded to nearest, and modules in another format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from recipes.module_lists import check_patterns, is_listed
from recipes.quantization import (
    LLM_COMPRESSOR_WORKER,
    MODEL_FREE_WORKER,
    Calibration,
    Quantization,
    WithKvScales,
)
from recipes.weight_format import WeightFormat

ModuleNames = Annotated[
    list[str], Field(min_length=1, max_length=2_000), AfterValidator(check_patterns)
]
SchemeName = Literal["FP8_DYNAMIC", "FP8_BLOCK", "FP8", "NVFP4", "NVFP4A16", "MXFP4"]
EightBits = Literal["FP8_DYNAMIC", "W8A16"]
NAMED = 5
"""Modules of another format that a card names."""
OTHERS_TOLD = (
    "modules with another scheme, by that scheme: names, shell patterns, or 're:' expressions"
)


@dataclass(frozen=True)
class Scheme:
    """One preset."""

    form: WeightFormat
    # The demo's lowest layers have 31.3 dB in FP8, 20.4 dB in NVFP4 and 18.3 dB in MXFP4.
    floor_db: float
    words: str
    static: bool = False  # activations have static scales, so there is calibration


SCHEMES = {
    "FP8_DYNAMIC": Scheme(
        WeightFormat("float-quantized", 8, "float", "channel"),
        25.0,
        "FP8 weights (one scale an output channel), FP8 activations (one scale a token, found "
        "while serving)",
    ),
    "FP8_BLOCK": Scheme(
        WeightFormat("float-quantized", 8, "float", "block", block=(128, 128)),
        25.0,
        "FP8 weights (one scale a block of 128 x 128), FP8 activations",
    ),
    "FP8": Scheme(
        WeightFormat("float-quantized", 8, "float", "tensor", static_input=True),
        25.0,
        "FP8 weights and activations, one static scale a tensor",
        static=True,
    ),
    "NVFP4": Scheme(
        WeightFormat(
            "nvfp4-pack-quantized", 4, "float", "tensor_group", group=16, static_input=True
        ),
        15.0,
        "4-bit floats (NVFP4) in groups of 16, weights and activations",
        static=True,
    ),
    "NVFP4A16": Scheme(
        WeightFormat("nvfp4-pack-quantized", 4, "float", "tensor_group", group=16),
        15.0,
        "4-bit floats (NVFP4) in groups of 16, 16-bit activations",
    ),
    "MXFP4": Scheme(
        WeightFormat("mxfp4-pack-quantized", 4, "float", "group", group=32),
        13.0,
        "4-bit floats (MXFP4) in groups of 32 with a power of two as scale, weights and "
        "activations",
    ),
    # One scale a row, where the library's preset of this name has groups of 128 columns, which do
    # not divide every layer.
    "W8A16": Scheme(
        WeightFormat("pack-quantized", 8, "int", "channel"),
        15.0,
        "8-bit integers (one scale an output channel), 16-bit activations",
    ),
}


class WithOtherSchemes(Quantization):
    """Quantization by llm-compressor that may give modules another format than the rest.

    A subclass declares `other_schemes`, a mapping of names in `SCHEMES` to lists of modules.
    """

    @property
    def others(self) -> Mapping[str, list[str]]:
        """Lists of modules by their scheme."""
        others: Mapping[str, list[str]] = self.other_schemes  # type: ignore[attr-defined]
        return others

    @property
    def parts(self) -> tuple[Quantization, ...]:
        """The last one has the modules of no list."""
        if not self.others:
            return (self,)
        rest = self.model_copy(update={"other_schemes": {}})
        return (*map(self._part, self.others), rest)

    def part_of(self, module: str) -> int:
        """Implement :meth:`Quantization.part_of`."""
        lists = list(self.others.values())
        return next((n for n, words in enumerate(lists) if is_listed(module, words)), len(lists))

    def _part(self, scheme: str) -> Quantization:
        # Not validated: W8A16 is no preset by itself.
        part = PresetQuantization.model_construct(
            kind="preset", scheme="FP8_DYNAMIC", ignore=self.ignore
        )
        return part.model_copy(update={"scheme": scheme, "calibration": self.calibration})

    @property
    def words_of_others(self) -> str:
        """Their formats, for a model card."""
        return "".join(
            f"; in {', '.join(words[:NAMED])}"
            f"{f' and {len(words) - NAMED} more' if len(words) > NAMED else ''}"
            f": {SCHEMES[scheme].words}"
            for scheme, words in self.others.items()
        )


class PresetQuantization(WithOtherSchemes, WithKvScales):
    """Presets of compressed-tensors by llm-compressor, with weights rounded to nearest."""

    kind: Literal["preset"]
    scheme: SchemeName = Field(
        description="FP8_DYNAMIC: per-channel weights, per-token activations. FP8_BLOCK: weights "
        "in blocks of 128 x 128. FP8: one static scale a tensor, calibrated. NVFP4: 4-bit floats "
        "in groups of 16, calibrated. NVFP4A16: the same with 16-bit activations. MXFP4: 4-bit "
        "floats in groups of 32"
    )
    other_schemes: dict[SchemeName | Literal["W8A16"], ModuleNames] = Field(
        default={},
        description=f"{OTHERS_TOLD}. W8A16: 8-bit integers, one scale a row, 16-bit activations",
    )
    calibration: Calibration | None = Field(
        None,
        description="required if activations or KV cache have static scales, or with "
        "other_schemes, otherwise absent",
    )

    @property
    def worker(self) -> str:
        return MODEL_FREE_WORKER if self.is_streamed else LLM_COMPRESSOR_WORKER

    @property
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        return (SCHEMES[self.scheme].form,)

    @property
    def is_streamed(self) -> bool:
        return self.calibration is None

    @property
    def keeps_stacked_experts(self) -> bool:
        return self.is_streamed and SCHEMES[self.scheme].form.bits == 8

    @property
    def sqnr_floor_db(self) -> float:
        return SCHEMES[self.scheme].floor_db

    def format_description(self, group_size: int | None) -> str:
        return SCHEMES[self.scheme].words + self.words_of_others

    @property
    def method_description(self) -> str:
        return "Weights are rounded to nearest, by llm-compressor."

    @model_validator(mode="after")
    def _static_scales_are_calibrated(self) -> PresetQuantization:
        if self.scheme in self.other_schemes:
            raise ValueError(f"{self.scheme} is the scheme of all other modules: name it once")
        if self.other_schemes and self.calibration is None:
            raise ValueError("several schemes need the whole model: add the key 'calibration'")
        static = self.other_schemes or self.kv_cache_scales or SCHEMES[self.scheme].static
        if static and self.calibration is None:
            raise ValueError(f"{self.scheme} has static scales here: add the key 'calibration'")
        if not static and self.calibration is not None:
            raise ValueError(f"{self.scheme} needs no data: remove the key 'calibration'")
        return self
