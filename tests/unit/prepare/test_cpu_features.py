from __future__ import annotations

import pytest

from prepare.errors import UsageError
from prepare.hardware import CPU_FEATURES_VARIABLE, FEATURES, cpu_features, limiting_variables

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


def test_a_variable_limits_the_run_and_its_libraries() -> None:
    assert cpu_features(WHOLE, {CPU_FEATURES_VARIABLE: "avx2"}) == ("avx2",)
    assert cpu_features(WHOLE, {CPU_FEATURES_VARIABLE: "none"}) == ()
    assert cpu_features(WHOLE, {CPU_FEATURES_VARIABLE: ""}) == FEATURES
    assert limiting_variables({}) == {}
    assert limiting_variables({CPU_FEATURES_VARIABLE: "avx2"}) == {
        CPU_FEATURES_VARIABLE: "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
    with pytest.raises(UsageError) as caught:
        cpu_features(WHOLE, {CPU_FEATURES_VARIABLE: "avx"})
    assert (caught.value.where, "avx2" in caught.value.hint) == (CPU_FEATURES_VARIABLE, True)
