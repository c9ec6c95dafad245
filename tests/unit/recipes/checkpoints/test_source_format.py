"""Formats of checkpoints that were released quantized, from config.json alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.checkpoints.source_format import source_format


def compressed(*weights: dict[str, Any]) -> dict[str, Any]:
    groups = {f"group_{n}": {"weights": each} for n, each in enumerate(weights)}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


FP8: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "channel"}
INT4 = {"num_bits": 4, "type": "int", "group_size": 128}
NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16}


@pytest.mark.parametrize(
    ("config", "label", "converter"),
    [
        (compressed(FP8), "FP8", "compressed-tensors"),
        (compressed(INT4), "INT4", "compressed-tensors"),
        (compressed(NVFP4, FP8), "NVFP4 and FP8", "compressed-tensors"),
        (compressed({**NVFP4, "group_size": 32}), "MXFP4", "compressed-tensors"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8", "fp8-block"),
        ({"quant_method": "fp8"}, "FP8", None),
        ({"quant_method": "awq", "bits": 4, "version": "gemm"}, "INT4", "awq"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "INT4", None),
        ({"quant_method": "gptq", "bits": 8}, "INT8", None),
        ({"quant_method": "gptq", "bits": 3}, "INT3", None),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "FP8", None),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "ModelOpt", None),
        ({"quant_method": "bitsandbytes"}, "quantized", None),
        ({"quant_method": "mxfp4"}, "MXFP4", None),
        ({"quant_method": "unheard-of"}, "quantized", None),
    ],
)
@pytest.mark.parametrize("level", ["top", "text_config"])
def test_formats(config: dict[str, Any], label: str, converter: str | None, level: str) -> None:
    own = {"quantization_config": config}
    found = source_format(own if level == "top" else {"text_config": own})
    assert found is not None
    assert (found.label, found.converter) == (label, converter)


@pytest.mark.parametrize(
    ("described", "label"),
    [({"quant_algo": "NVFP4"}, "NVFP4"), ({"quant_algo": 7}, "ModelOpt"), ([], "ModelOpt")],
)
def test_modelopts_own_file(described: Any, label: str) -> None:
    found = source_format({}, {"quantization": described})
    assert found is not None
    assert found.label == label


ANY = st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "config_groups",
                    "weights",
                    "num_bits",
                    "group_size",
                    "strategy",
                    "bits",
                    "version",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(method=st.sampled_from(["compressed-tensors", "fp8", "awq", "gptq", "modelopt"]), rest=ANY)
def test_any_content_gives_a_format(method: str, rest: Any) -> None:
    config = {"quant_method": method, **(rest if isinstance(rest, dict) else {"bits": rest})}
    assert source_format({"quantization_config": config}) is not None
