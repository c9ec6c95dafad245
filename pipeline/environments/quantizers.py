"""Worker and environment for each kind of quantization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.environments.definition import RUN_ENVIRONMENTS, EnvironmentName

if TYPE_CHECKING:  # workers import this module with the standard library alone
    from recipes.quantization import Quantization


@dataclass(frozen=True)
class Quantizer:
    """Worker of the stage `quantize`."""

    environment: EnvironmentName
    worker: str  # module of `pipeline.workers`


STREAMED = ("FP8_DYNAMIC", "FP8_BLOCK")  # presets whose scales depend on the weights only
_LLM_COMPRESSOR = Quantizer(EnvironmentName.QUANTIZE, "quantize")
_BY_KIND = {"autoawq": Quantizer(EnvironmentName.QUANTIZE_AUTOAWQ, "quantize_autoawq")}


def quantizer_of(kind: str) -> Quantizer:
    """Return the quantizer for a recipe's `quantization.kind`."""
    return _BY_KIND.get(kind, _LLM_COMPRESSOR)


def environments_for(quantizations: Iterable[Quantization]) -> tuple[EnvironmentName, ...]:
    """List the environments of a run of these recipes, in the order of EnvironmentName."""
    asked_for = {quantizer_of(each.kind).environment for each in quantizations}
    return tuple(name for name in EnvironmentName if name in {*RUN_ENVIRONMENTS, *asked_for})


def is_streamed(quantization: Mapping[str, Any]) -> bool:
    """Return whether weights are cast file by file, so that a killed attempt is resumed."""
    return quantization.get("scheme") in STREAMED and quantization.get("calibration") is None
