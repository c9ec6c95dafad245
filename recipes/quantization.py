"""The ways to quantize that a recipe can ask for; a recipe names one by its `kind`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from recipes.config_model import ConfigModel, Seed


class Calibration(ConfigModel):
    """Texts that the quantizer runs through the model to see its activations."""

    dataset: str | None = Field(
        None, description="Hub dataset id, 'builtin' for the project's own texts, or a file path"
    )
    split: str = Field("train", description="split of a Hub dataset")
    column: str = Field("text", description="column or JSON key that holds the text or messages")
    revision: str | None = Field(None, description="commit or tag of a Hub dataset")
    fallback: Literal["builtin"] | None = Field(
        None, description="what to use when the Hub cannot be reached; its use is reported"
    )
    samples: int = Field(
        256, ge=1, le=1_000_000, description="blocks of max_tokens tokens, cut from the texts"
    )
    max_tokens: int = Field(
        512,
        ge=16,
        le=1_000_000,
        description="tokens of a block; texts are shuffled by seed and laid end to end",
    )
    batch_size: int = Field(1, ge=1, le=10_000, description="blocks a forward pass")
    seed: Seed = Field(20240814, description="of the shuffle, and of torch while quantizing")


class NoQuantization(ConfigModel):
    """The checkpoint as it is: the recipe of the baseline."""

    kind: Literal["none"] = "none"
    ignore: list[str] = Field(default=[], max_length=0)
    calibration: None = None


class _LinearLayers(ConfigModel):
    """What all ways to quantize have in common: they take linear layers, and leave some alone."""

    ignore: list[str] = Field(
        default=["lm_head"],
        max_length=2_000,
        description="modules kept in 16 bits: names, shell patterns, or 're:' expressions",
    )

    @field_validator("ignore")
    @classmethod
    def _expressions_are_such(cls, ignore: list[str]) -> list[str]:
        for word in ignore:
            try:
                re.compile(word.removeprefix("re:") if word.startswith("re:") else "")
            except (re.error, RecursionError, OverflowError) as error:
                raise ValueError(f"{word[:80]!r} is no regular expression: {error}") from error
        return ignore


class PresetQuantization(_LinearLayers):
    """A preset of compressed-tensors, weights rounded to nearest, by llm-compressor."""

    kind: Literal["preset"]
    scheme: Literal["FP8_DYNAMIC", "FP8_BLOCK", "FP8", "NVFP4"] = Field(
        description="FP8_DYNAMIC: per-channel weights, per-token activations. FP8_BLOCK: weights "
        "in blocks of 128 x 128. FP8: one static scale a tensor, calibrated. NVFP4: 4-bit floats "
        "in groups of 16"
    )
    kv_cache_scales: bool = Field(
        False, description="calibrate the scales of an FP8 KV cache and keep them with the weights"
    )
    calibration: Calibration | None = Field(
        None, description="needed where activations or KV cache have static scales, else absent"
    )

    @model_validator(mode="after")
    def _static_scales_are_calibrated(self) -> PresetQuantization:
        static = self.kv_cache_scales or self.scheme in ("FP8", "NVFP4")
        if static and self.calibration is None:
            raise ValueError(f"{self.scheme} has static scales here: add the key 'calibration'")
        if not static and self.calibration is not None:
            raise ValueError(f"{self.scheme} needs no data: remove the key 'calibration'")
        return self


class _InGroups(_LinearLayers):
    """Columns of a weight that share a scale."""

    group_size: int = Field(128, description="columns that share a scale", ge=1, le=65_536)
    smaller_group_sizes: list[Annotated[int, Field(ge=1, le=65_536)]] = Field(
        default=[64, 32],
        max_length=16,
        description="tried in this order when group_size does not divide; reported",
    )
    calibration: Calibration


class AwqQuantization(_InGroups):
    """Activation-aware weight quantization (arXiv 2306.00978) by llm-compressor."""

    kind: Literal["awq"]
    bits: Literal[4, 8] = 4
    symmetric: bool = False
    observer: Literal["minmax", "mse"] = Field(
        "minmax", description="how a group's range is found: its extremes, or the least error"
    )
    # llm-compressor 0.14 divides by this less two.
    grid_points: int = Field(20, ge=3, le=1_000, description="candidate scales tried per layer")


class GptqQuantization(_InGroups):
    """GPTQ (arXiv 2210.17323), with SmoothQuant (arXiv 2211.10438) before it where asked for."""

    kind: Literal["gptq"]
    scheme: Literal["W4A16", "W8A8"] = Field(
        description="W4A16: 4-bit weights in groups, symmetric. W8A8: 8-bit weights per channel "
        "(no groups), 8-bit activations per token"
    )
    dampening: float = Field(
        0.01, ge=1e-9, lt=1, description="added to the Hessian's diagonal, as a share of its mean"
    )
    smoothing_strength: float | None = Field(
        None, ge=1e-6, lt=1, description="of SmoothQuant; absent: not used"
    )


class AutoAwqQuantization(_InGroups):
    """AWQ by AutoAWQ itself, in its own checkpoint format (GEMM): 4 bits with zero points."""

    kind: Literal["autoawq"]
    clip_search: bool = Field(
        False, description="search for clipping of the weights too: about ten times slower"
    )


Quantization = Annotated[
    NoQuantization | PresetQuantization | AwqQuantization | GptqQuantization | AutoAwqQuantization,
    Field(discriminator="kind"),
]
