"""Scales against what feeds a layer: which deviations are noise, and which a defect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import VerificationError
from pipeline.verification.function_equivalence import check_preserved
from pipeline.verification.quantization_noise import QuantizationNoise
from pipeline.verification.rescaling import RescalingFit

RANDOM = np.random.default_rng(4)
BLOCK = "model.layers.7"
ONES = np.ones(96, np.float32)
MILD = np.exp(RANDOM.normal(size=96) * 0.1).astype(np.float32)


def layer(columns: Any, rows: Any = ONES, noise: float = 0.01) -> RescalingFit:
    energies = QuantizationNoise(signal=1.0, noise=noise)
    return RescalingFit(energies, np.asarray(columns, np.float32), np.asarray(rows, np.float32))


def check(layers: dict[str, RescalingFit], **norms: tuple[Any, Any]) -> None:
    check_preserved(
        {f"{BLOCK}.{name}": one for name, one in layers.items()},
        {f"{BLOCK}.{name}": weights for name, weights in norms.items()},
        "variant",
    )


def test_nothing_was_rescaled() -> None:
    check({"mlp.up_proj": layer(ONES), "mlp.down_proj": layer(ONES)}, norm=(ONES, ONES))


@pytest.mark.parametrize("factors", [MILD, MILD * 2, ONES * 2])
def test_the_norm_makes_up_for_it(factors: Any) -> None:
    """The stored norm is the source's times what the columns have to be multiplied by."""
    check({"attn.q_proj": layer(factors), "attn.k_proj": layer(factors)}, norm=(ONES, factors))


@pytest.mark.parametrize("factor", [0.3, 1.0, 8.0])
def test_a_common_factor_may_stand_with_the_rows(factor: float) -> None:
    """Only the product of rows and columns is seen; the layer after has the other half of it."""
    up = layer(MILD * factor, 1 / MILD)
    layers = {"mlp.gate_proj": layer(MILD), "mlp.up_proj": up}
    check(layers | {"mlp.down_proj": layer(MILD / factor)}, norm=(ONES, MILD))


def test_norms_that_are_stored_less_one() -> None:
    """Gemma's: the factor is 1 + w."""
    before = RANDOM.normal(size=96).astype(np.float32) * 0.2
    check({"attn.q_proj": layer(MILD)}, norm=(before, (1 + before) * MILD - 1))


@pytest.mark.parametrize(
    ("columns", "norm", "words"),
    [
        (MILD, ONES, "q_proj' were rescaled"),
        (ONES * 1.5, ONES, "q_proj' is scaled by 1.50 as a whole"),
        (ONES, ONES * 1.5, "norm.weight' was rescaled"),
        (MILD, 1 / MILD, "q_proj' were rescaled"),
        (MILD * 1.5, MILD, "q_proj' is scaled by 1.50 as a whole"),
    ],
)
def test_what_does_not_match(columns: Any, norm: Any, words: str) -> None:
    with pytest.raises(VerificationError) as caught:
        check({"attn.q_proj": layer(columns, noise=0.001)}, norm=(ONES, norm))
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("norms", "before_mlp"),
    [
        (["input_layernorm", "post_attention_layernorm"], "post_attention_layernorm"),  # Llama
        (["input_layernorm"], "input_layernorm"),  # Phi-2, side by side with the attention
        (
            [
                *("input_layernorm", "post_attention_layernorm"),
                *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
            ],
            "pre_feedforward_layernorm",  # Gemma 2 and 3
        ),
        (["post_attention_layernorm", "post_feedforward_layernorm"], None),  # OLMo2
    ],
)
def test_only_the_norm_that_an_mlp_reads_makes_up_for_it(
    norms: list[str], before_mlp: str | None
) -> None:
    """And where attention and MLP read the same norm, both have to be scaled with it."""
    layers = {"mlp.gate_proj": layer(MILD), "mlp.up_proj": layer(MILD)}
    if before_mlp == "input_layernorm":
        layers["self_attn.q_proj"] = layer(MILD)
    for norm in norms:
        weights = {name: (ONES, MILD if name == norm else ONES) for name in norms}
        if norm == before_mlp:
            check(layers, **weights)
            continue
        with pytest.raises(VerificationError):
            check(layers, **weights)
    if before_mlp == "input_layernorm":
        for name in layers:
            with pytest.raises(VerificationError, match=f"{name}' and .*input_layernorm.weight'"):
                check(layers | {name: layer(ONES, noise=1e-4)}, input_layernorm=(ONES, MILD))


@pytest.mark.parametrize(
    "norms",
    [
        ["input_layernorm", "pre_ff_layernorm"],  # Jamba
        ["input_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"],
    ],
)
def test_of_names_that_tell_nothing_any_norm_may_be_the_one_that_an_mlp_reads(
    norms: list[str],
) -> None:
    layers = {"mlp.gate_proj": layer(MILD), "mlp.up_proj": layer(MILD)}
    check(layers, **{name: (ONES, MILD if name == norms[1] else ONES) for name in norms})
    attention = {"self_attn.q_proj": layer(MILD)}
    check(attention, **{name: (ONES, MILD if name == norms[0] else ONES) for name in norms})
    with pytest.raises(VerificationError, match=r"input_layernorm.weight'"):
        check(attention, **{name: (ONES, MILD if name == norms[1] else ONES) for name in norms})


def test_a_norm_of_another_block_does_not_count() -> None:
    norms = {"model.layers.6.norm": (ONES, MILD)}
    with pytest.raises(VerificationError, match=r"columns of 'model.layers.7.attn.q_proj'"):
        check_preserved({f"{BLOCK}.attn.q_proj": layer(MILD, noise=1e-4)}, norms, "variant")


def test_rows_without_a_layer_after() -> None:
    with pytest.raises(VerificationError, match=r"rows of .*k_proj'"):
        check({"attn.k_proj": layer(ONES, MILD, noise=0.001)})


def test_noise_widens_what_is_allowed() -> None:
    check({"attn.q_proj": layer(MILD, noise=0.05)})
    with pytest.raises(VerificationError):
        check({"attn.q_proj": layer(MILD, noise=0.001)})
