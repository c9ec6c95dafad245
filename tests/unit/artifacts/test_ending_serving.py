"""What is said of how variants were served, next to every verdict."""

from __future__ import annotations

import pytest
from sample_reports import run_report

from artifacts.recorded_command import read_command
from artifacts.run_outcome import baseline_lines, serving_lines
from recipes import catalog


def test_fp8_attention_and_fallbacks_are_told() -> None:
    command = {
        "cpu_overrides": {"float32": "bf16 is emulated"},
        "kv_cache_note": "FP8",
        "speculation": "ngram",
    }
    assert serving_lines(read_command(command)) == [
        "CPU override float32: bf16 is emulated",
        "KV cache: FP8",
        "speculative decoding: ngram",
    ]
    assert serving_lines(read_command({})) == []


@pytest.mark.parametrize("name", catalog.profile_names())
def test_a_profile_of_gpus_with_an_fp8_cache_says_what_it_does(name: str) -> None:
    profile = catalog.load_profile(name)
    if profile.accelerator == "cuda":
        is_fp8 = profile.kv_cache_dtype.startswith("fp8")
        assert (profile.kv_cache_note is not None) is is_fp8


def test_released_weights_are_named_as_the_baseline() -> None:
    assert baseline_lines(run_report()) == []
    source = {"ref": "org/name", "digest": "d", "quantized": "FP8"}
    (line,) = baseline_lines(run_report(checkpoint={"ref": "r", "digest": "d", "source": source}))
    assert line.endswith("verdicts are against the released FP8 weights")
