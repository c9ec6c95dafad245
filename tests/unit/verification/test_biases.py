"""Biases against the scaling of what they belong to: which deviations are rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import VerificationError
from pipeline.verification.biases import check_biases
from pipeline.verification.quantization_noise import QuantizationNoise
from pipeline.verification.rescaling import RescalingFit
from pipeline.verification.unquantized_tensors import UnquantizedTensor

RANDOM = np.random.default_rng(6)
BLOCK = "model.layers.7"
ONES = np.ones(96, np.float32)
MILD = np.exp(RANDOM.normal(size=96) * 0.2).astype(np.float32)
BIAS = RANDOM.normal(size=96).astype(np.float32)


def check(name: str, before: Any, after: Any, *, altered: str | None = None) -> None:
    """A bias of a block whose norm was multiplied by MILD, and whose up_proj was divided by it."""
    energies = QuantizationNoise(signal=1.0, noise=1e-4)
    layers = {
        f"{BLOCK}.mlp.up_proj": RescalingFit(energies, ONES, MILD),
        f"{BLOCK}.mlp.down_proj": RescalingFit(energies, 1 / MILD, ONES),
        f"{BLOCK}.mlp.gate_proj": RescalingFit(energies, ONES, ONES),
    }
    weights = (np.asarray(before, np.float32), np.asarray(after, np.float32))
    vector = UnquantizedTensor(f"{BLOCK}.{name}", altered, weights)
    check_biases(layers, {f"{BLOCK}.norm": MILD}, [vector], "variant")


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("norm.bias", MILD),
        ("mlp.up_proj.bias", 1 / MILD),
        ("mlp.gate_proj.bias", ONES),
        ("self_attn.sinks", ONES),
    ],
)
def test_in_float16_small_numbers_lose_digits(name: str, factors: Any, size: float) -> None:
    bias = BIAS * np.float32(size)
    check(name, bias, (bias * factors).astype(np.float16), altered="BF16 to F16")


@pytest.mark.parametrize("name", ["norm.bias", "mlp.up_proj.bias", "mlp.gate_proj.bias"])
def test_a_bias_of_zeros(name: str) -> None:
    check(name, ONES * 0, ONES * 0)
    with pytest.raises(VerificationError, match=name):
        check(name, ONES * 0, ONES)
    with pytest.raises(VerificationError, match=name):
        check(name, BIAS, ONES * 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda bias: np.where(np.arange(96) == 3, -bias, bias),
        lambda bias: np.where(np.arange(96) < 40, 0, bias),
        lambda bias: bias * 1.1,
        lambda bias: np.roll(bias, 1),
    ],
)
def test_damage_beside_rows_that_were_rescaled(damage: Any) -> None:
    check("mlp.up_proj.bias", BIAS, BIAS / MILD)
    with pytest.raises(VerificationError, match=r"'model.layers.7.mlp.up_proj.bias'"):
        check("mlp.up_proj.bias", BIAS, damage(BIAS / MILD))


def test_what_nothing_rescales_is_the_same_to_the_bit() -> None:
    after = BIAS.copy()
    after[5] = np.nextafter(after[5], np.float32(9))
    with pytest.raises(VerificationError, match=r"mlp.gate_proj.bias' .* 1 of 96"):
        check("mlp.gate_proj.bias", BIAS, after)
    check("mlp.gate_proj.bias", BIAS, after, altered="F32 to BF16")


def test_a_channel_of_the_norm_that_is_not_known() -> None:
    """0 / 0: the weight was 0 and is."""
    factors = MILD.copy()
    factors[4] = np.nan
    vector = UnquantizedTensor(f"{BLOCK}.norm.bias", None, (BIAS, BIAS * MILD))
    check_biases({}, {f"{BLOCK}.norm": factors}, [vector], "variant")
