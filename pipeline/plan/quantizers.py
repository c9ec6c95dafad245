"""Which worker makes a variant, and in which environment: a matter of its kind of quantization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.environments.definition import RUN_ENVIRONMENTS, EnvironmentName

if TYPE_CHECKING:  # workers ask here too, and start with the standard library alone
    from recipes.quantization import Quantization


@dataclass(frozen=True)
class Quantizer:
    """What the stage `quantize` runs."""

    environment: EnvironmentName  # that the worker runs in
    worker: str  # module of `pipeline.workers`


STREAMED = ("FP8_DYNAMIC", "FP8_BLOCK")  # presets whose scales hang on the weights alone
_LLM_COMPRESSOR = Quantizer(EnvironmentName.QUANTIZE, "quantize")
_BY_KIND = {"autoawq": Quantizer(EnvironmentName.QUANTIZE_AUTOAWQ, "quantize_autoawq")}


def quantizer_of(kind: str) -> Quantizer:
    """The quantizer for a recipe's `quantization.kind`."""
    return _BY_KIND.get(kind, _LLM_COMPRESSOR)


def environments_for(quantizations: Iterable[Quantization]) -> tuple[EnvironmentName, ...]:
    """The environments that a run of these recipes may use, in the order of EnvironmentName."""
    asked_for = {quantizer_of(each.kind).environment for each in quantizations}
    return tuple(name for name in EnvironmentName if name in {*RUN_ENVIRONMENTS, *asked_for})


def is_streamed(quantization: Mapping[str, Any]) -> bool:
    """Whether the weights are cast file by file, so that a killed try is resumed."""
    return quantization.get("scheme") in STREAMED and quantization.get("calibration") is None
