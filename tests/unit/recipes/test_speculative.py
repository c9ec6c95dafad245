"""Speculative decoding in a profile: what the engine has, and what is refused with its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.serving.serving_arguments import ServingArguments, draft_counters
from prepare.errors import UsageError
from recipes.catalog import RECIPES, load_profile
from recipes.schema import ServingProfile
from recipes.speculative import SpeculativeConfig

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
DRAFT = {"method": "draft_model", "num_speculative_tokens": 3, "model": "org/small"}
SYNTHETIC = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}
DIGEST = "0123456789abcdef" * 4


def profile(folder: Path, speculative: dict[str, Any], carried: str = "cpu") -> ServingProfile:
    data = yaml.safe_load((RECIPES / "profiles" / f"{carried}.yaml").read_text())
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({**data, "speculative": speculative}))
    return load_profile(str(file))


def test_it_is_on_the_command_line_of_variants_alone(tmp_path: Path) -> None:
    found = profile(tmp_path, NGRAM)
    baseline = ServingArguments.of(found, is_baseline=True)
    variant = ServingArguments.of(found, is_baseline=False)
    assert baseline.speculative is None
    assert "speculative" not in baseline.to_dict()
    assert draft_counters(baseline) == {}
    assert draft_counters(variant)["drafts"] == "vllm:spec_decode_num_drafts_total"
    told = json.loads(str(variant.for_engine()["speculative-config"]))
    assert told == {
        **NGRAM,
        "rejection_sample_method": "standard",
        "draft_sample_method": "greedy",
    }
    assert variant.to_dict()["speculative"] == told


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "a method that there is not": ({**NGRAM, "method": "ngrams"}, "cpu", "ngrams"),
    "one of GPUs": ({**NGRAM, "method": "ngram_gpu"}, "cpu", "ngram_gpu"),
    "one that loads code": ({**NGRAM, "method": "custom_class"}, "cpu", "custom_class"),
    "one whose package is missing": ({**NGRAM, "method": "suffix"}, "h100", "suffix"),
    "a typo": ({**NGRAM, "prompt_lookup_maximum": 4}, "cpu", "prompt_lookup_maximum"),
    "no number of tokens": ({"method": "ngram"}, "cpu", "num_speculative_tokens"),
    "a draft for n-grams": ({**NGRAM, "model": "org/small"}, "cpu", "model"),
    "no draft": ({"method": "eagle3", "num_speculative_tokens": 2}, "h100", "model"),
    "n-grams for a draft": ({**DRAFT, "prompt_lookup_max": 2}, "cpu", "prompt_lookup"),
    "lengths the wrong way": ({**NGRAM, "prompt_lookup_min": 5}, "cpu", "prompt_lookup_min"),
    "a rule of GPUs": ({**NGRAM, "rejection_sample_method": "fly"}, "cpu", "fly"),
    "too few for the rule": (
        {"method": "mtp", "num_speculative_tokens": 1, "rejection_sample_method": "fly"},
        "h100",
        "num_speculative_tokens",
    ),
    "nothing to pretend": ({**NGRAM, "rejection_sample_method": "synthetic"}, "cpu", "synthetic"),
    "pretending by the standard": (
        {**NGRAM, "synthetic_acceptance_length": 2.0},
        "cpu",
        "synthetic_acceptance_length",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_the_engine_does_not_know_is_refused_with_file_and_key(
    wrong: str, tmp_path: Path
) -> None:
    data, carried, word = WRONG[wrong]
    with pytest.raises(UsageError) as caught:
        profile(tmp_path, data, carried)
    assert "mine.yaml, key speculative" in caught.value.where
    assert word in f"{caught.value.message} {caught.value.where}"
    assert caught.value.hint


def test_lossy_and_synthetic_are_told_apart(tmp_path: Path) -> None:
    plain = SpeculativeConfig.model_validate(NGRAM)
    assert plain.unfit("vllm") == ""
    assert "lossy" not in plain.words("vllm")
    fly = plain.model_copy(update={"rejection_sample_method": "fly"})
    fly.check("cuda", "vllm")
    assert fly.unfit("vllm") == ""
    assert "lossy" in fly.words("vllm")
    synthetic = profile(tmp_path, {**NGRAM, **SYNTHETIC}).speculative
    assert synthetic is not None
    assert synthetic.unfit("vllm")
    assert "lossy" in synthetic.words("vllm")
