from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import UsageError
from pipeline.core.hardware import CPU_FEATURES_VARIABLE, FEATURES, cpu_features, limiting_variables

AVX512 = "avx2 avx512f avx512bw avx512dq avx512vl"
WHOLE = f"processor : 0\nflags : fpu {AVX512} avx512_bf16 amx_tile\n\nprocessor : 1\nflags : fpu\n"


@pytest.mark.parametrize(
    ("flags", "features"),
    [
        ("fpu sse4_2", ()),
        ("fpu avx2", ("avx2",)),
        (f"fpu {AVX512}", ("avx2", "avx512f")),
        (f"fpu {AVX512} avx512_bf16", ("avx2", "avx512f", "avx512_bf16")),
        (f"fpu {AVX512} avx512_bf16 amx_tile", FEATURES),
        # Xeon Phi: torch says that this is no AVX-512, and the engine asks torch.
        ("fpu avx2 avx512f avx512cd avx512er", ("avx2",)),
    ],
)
def test_flags(flags: str, features: tuple[str, ...]) -> None:
    assert cpu_features(f"processor : 0\nflags\t\t: {flags}\n", {}) == features


def test_another_architecture_has_none() -> None:
    assert cpu_features("processor : 0\nFeatures : asimd\n", {}) == ()


def test_a_variable_names_less() -> None:
    assert cpu_features(WHOLE, {CPU_FEATURES_VARIABLE: "avx512f, avx2"}) == ("avx2", "avx512f")
    assert cpu_features(WHOLE, {CPU_FEATURES_VARIABLE: "none"}) == ()
    assert cpu_features(WHOLE, {CPU_FEATURES_VARIABLE: ""}) == FEATURES


@pytest.mark.parametrize("text", ["avx", "avx2;avx512f", "avx512f", "AVX2", "none,avx3"])
def test_what_is_no_list_of_features(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        cpu_features(WHOLE, {CPU_FEATURES_VARIABLE: text})
    assert caught.value.where == CPU_FEATURES_VARIABLE
    assert "avx2,avx512f" in caught.value.hint


def test_a_variable_cannot_give_what_the_cpu_lacks() -> None:
    with pytest.raises(UsageError, match="no avx512f"):
        cpu_features("flags : avx2\n", {CPU_FEATURES_VARIABLE: "avx2,avx512f"})


def test_nothing_is_limited_where_the_cpu_has_no_more() -> None:
    assert limiting_variables(WHOLE, {}) == {}
    assert limiting_variables("flags : avx2\n", {CPU_FEATURES_VARIABLE: "avx2"}) == {}


def test_libraries_are_limited_with_it() -> None:
    assert limiting_variables(WHOLE, {CPU_FEATURES_VARIABLE: "avx2"}) == {
        CPU_FEATURES_VARIABLE: "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
    without_amx = limiting_variables(WHOLE, {CPU_FEATURES_VARIABLE: "avx2,avx512f,avx512_bf16"})
    assert without_amx["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    assert "ATEN_CPU_CAPABILITY" not in without_amx


@given(st.text())
def test_any_text_is_a_list_or_an_expected_error(text: str) -> None:
    try:
        found = cpu_features(WHOLE, {CPU_FEATURES_VARIABLE: text})
    except UsageError:
        return
    assert found == FEATURES[: len(found)]
