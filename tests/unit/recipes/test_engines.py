"""Engines: their arguments as a command line, and what all of them must say."""

from __future__ import annotations

import pytest

from pipeline.core.plugins import ENGINES, plugin_names
from recipes.engines import find_engine, options


def test_arguments_become_a_command_line() -> None:
    arguments = {
        "dtype": "bfloat16",
        "max-num-seqs": 32,
        "gpu-memory-utilization": 0.9,
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "kv-cache-dtype": "fp8",
    }
    assert list(options(arguments)) == [
        *("--dtype", "bfloat16"),
        *("--max-num-seqs", "32"),
        *("--gpu-memory-utilization", "0.9"),
        "--enforce-eager",
        *("--kv-cache-dtype", "fp8"),
    ]


def test_zero_and_one_are_values_and_no_flags() -> None:
    arguments = {"seed": 0, "tensor-parallel-size": 1}
    assert list(options(arguments)) == ["--seed", "0", "--tensor-parallel-size", "1"]


def test_lists() -> None:
    arguments = {"kv-cache-dtype-skip-layers": ["sliding_window", "0"]}
    assert list(options(arguments)) == ["--kv-cache-dtype-skip-layers", "sliding_window", "0"]


@pytest.mark.parametrize("name", plugin_names(ENGINES))
def test_an_engine_is_found_by_its_name(name: str) -> None:
    assert find_engine(name).name == name


def test_no_such_engine() -> None:
    with pytest.raises(ValueError, match="vllm"):
        find_engine("no\x1bsuch")
