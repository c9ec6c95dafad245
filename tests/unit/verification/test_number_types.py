"""Narrow numbers as float32: every code of the small types, and random ones of the others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from narrow_numbers import FP4_VALUES, FP8_VALUES, bf16, pack_awq, words

from pipeline.verification.number_types import (
    round_to,
    to_float32,
    unpack_awq,
    unpack_fp4,
    unpack_integers,
)


def test_every_fp8_number() -> None:
    values = to_float32(np.arange(256, dtype=np.uint8), "F8_E4M3")
    assert values.dtype == np.float32
    assert values[:127].tolist() == FP8_VALUES.tolist()
    assert values[128:255].tolist() == (-FP8_VALUES).tolist()
    assert math.isnan(values[127])
    assert math.isnan(values[255])
    assert values[126] == 448


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1))
def test_rounded_to_a_narrow_type(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    nearest = round_to(values, "BF16")
    assert np.array_equal(nearest, to_float32(bf16(values).array.view(np.uint8), "BF16"))
    assert np.array_equal(round_to(nearest, "BF16"), nearest)
    assert np.array_equal(round_to(values, "F32"), values)


def test_halves_are_rounded_to_even() -> None:
    halves = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    assert round_to(halves, "BF16").tolist() == [1.0, 1 + 2**-6]
    assert round_to(halves, "F16").tolist() == halves.tolist()


def test_an_odd_number_of_them() -> None:
    codes = np.array([8, 200, 126], np.uint8)
    assert to_float32(codes, "F8_E4M3")[2] == 448
    assert to_float32(codes[:1], "F8_E4M3").tolist() == [2.0**-6]
    assert to_float32(codes[:0], "F8_E4M3").size == 0


def test_every_pair_of_fp4_numbers() -> None:
    both = np.concatenate([FP4_VALUES, -FP4_VALUES])
    codes = np.arange(256, dtype=np.uint8)
    values = unpack_fp4(codes).reshape(-1, 2)
    assert values[:, 0].tolist() == both[codes & 15].tolist()
    assert values[:, 1].tolist() == both[codes >> 4].tolist()


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=40))
def test_bf16(numbers: list[float]) -> None:
    """Those of bf16 come back as they are."""
    stored = bf16(np.array(numbers, np.float32))
    back = to_float32(stored.array.view(np.uint8), "BF16")
    assert np.array_equal(bf16(back).array, stored.array)


@pytest.mark.parametrize("dtype", ["F16", "F32", "F64", "I8", "I32", "I64", "U8"])
def test_types_that_numpy_has(dtype: str) -> None:
    kind = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "i1", "U8": "u1"}
    stored = np.array([0, 1, 100], kind.get(dtype, f"<i{dtype[1:]}"[:2] + str(int(dtype[1:]) // 8)))
    assert to_float32(stored.view(np.uint8), dtype).tolist() == [0, 1, 100]


def test_a_type_that_cannot_be_read() -> None:
    with pytest.raises(KeyError):
        to_float32(np.zeros(4, np.uint8), "F6_E2M3")


@given(st.sampled_from([4, 8]), st.integers(1, 5), st.data())
def test_packed_integers(bits: int, count: int, data: st.DataObject) -> None:
    whole = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    size = 32 // bits * count
    numbers = data.draw(st.lists(whole, min_size=size, max_size=size))
    packed = words([[n + 2 ** (bits - 1) for n in numbers]], bits)
    assert unpack_integers(packed.view(np.uint8).reshape(-1), bits).tolist() == numbers


@given(st.lists(st.integers(0, 15), min_size=8, max_size=8), st.integers(1, 4))
def test_awqs_order(numbers: list[int], times: int) -> None:
    packed = pack_awq([numbers * times])
    assert unpack_awq(packed.view(np.uint8).reshape(-1)).tolist() == numbers * times
