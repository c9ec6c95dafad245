"""What `prepare tune` tries, as data: each is one that its engine takes, and names its lever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import UsageError
from pipeline.plan.tuning_plan import gpus_of, make_defaults, make_profiled, make_screened
from recipes.catalog import load_profile
from recipes.engine_arguments import DIVIDES_GPUS
from recipes.tuning_candidates import CandidateFile, ServingCandidate, combine, load_candidates

STANDARD = load_candidates("standard")
BATCHING: dict[str, Any] = {"parameter": "batching", "engine_arguments": {"max-num-seqs": 8}}


@pytest.mark.parametrize(("name", "accelerator"), [("cpu", "cpu"), ("h100", "cuda")])
def test_the_engine_knows_what_is_tried(name: str, accelerator: str) -> None:
    defaults = make_defaults(load_profile(name), STANDARD)
    tried = {n: c for n, c in STANDARD.candidates.items() if c.accelerator == accelerator}
    assert {"batching", "prefix_caching", "kv_cache_dtype", "speculation"} <= {
        each.parameter for each in tried.values()
    }
    for candidate_name, candidate in tried.items():
        screened = make_screened(candidate_name, candidate, defaults)
        assert screened.profile != defaults.profile
        assert not screened.profile.engine_arguments.keys() - {
            *defaults.profile.engine_arguments,
            *candidate.engine_arguments,
        }


def test_stock_has_nothing_that_a_candidate_moves() -> None:
    defaults = make_defaults(load_profile("cpu"), STANDARD)
    assert "max-num-seqs" not in defaults.profile.engine_arguments
    assert defaults.profile.kv_cache_dtype == "auto"
    # How many GPUs a copy takes is the profile's to say.
    spread = load_profile("h100").spread_over(4, expert_parallel=True)
    arguments = make_defaults(spread, STANDARD).profile.engine_arguments
    assert arguments["tensor-parallel-size"] == 4
    assert arguments["enable-expert-parallel"] is True


@pytest.mark.parametrize("name", DIVIDES_GPUS)
def test_what_a_server_is_spread_over_is_counted_whole(name: str) -> None:
    defaults = make_defaults(load_profile("h100"), STANDARD)
    twice = ServingCandidate(parameter="parallelism", engine_arguments={name: 2})
    assert gpus_of(make_screened("twice", twice, defaults).serving) == 2 * gpus_of(defaults.serving)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"candidates": {}}, "candidates"),
        ({"candidates": {"a": {"parameter": "batching"}}}, "candidates.a"),
        ({"candidates": {"engine-defaults": BATCHING}}, "candidates.engine-defaults"),
        ({"candidates": {"a": {**BATCHING, "parameter": "luck"}}}, "candidates.a.parameter"),
        ({"candidates": {"a": {**BATCHING, "leaver": 1}}}, "candidates.a.leaver"),
        (
            {"candidates": {"a": {**BATCHING, "engine_arguments": {"data-parallel-size": "two"}}}},
            "candidates.a.engine_arguments",
        ),
        ({"repetitions": 0}, "repetitions"),
        ({"prune_margin": 1.0}, "prune_margin"),
    ],
)
def test_a_wrong_file_is_refused_with_its_key(
    tmp_path: Path, changed: dict[str, Any], key: str
) -> None:
    import yaml

    file = tmp_path / "mine.yaml"
    good = {"name": "mine", "summary": "s", "candidates": {"a": BATCHING}}
    file.write_text(yaml.safe_dump({**good, **changed}))
    with pytest.raises(UsageError) as error:
        load_candidates(str(file))
    assert key.rpartition(".")[2] in f"{error.value.where} {error.value.message}"


def test_candidates_combine() -> None:
    found = CandidateFile.model_validate(
        {
            "name": "c",
            "summary": "s",
            "candidates": {
                "a": BATCHING,
                "b": {"parameter": "kv_cache_dtype", "kv_cache_dtype": "fp8"},
                "c": {"parameter": "memory", "engine_arguments": {"block-size": 64}},
            },
        }
    )
    together = combine(found.candidates.values())
    assert together.engine_arguments == {"max-num-seqs": 8, "block-size": 64}
    assert together.kv_cache_dtype == "fp8"
    assert together.changes_outputs
    assert not found.candidates["a"].changes_outputs


def test_a_profile_whose_argument_changes_answers_is_gated_again() -> None:
    half = ServingCandidate(parameter="batching", engine_arguments={"dtype": "float16"})
    found = CandidateFile(name="c", summary="s", candidates={"half": half})
    h100 = load_profile("h100").model_copy(update={"kv_cache_dtype": "auto"})
    assert make_profiled(h100, make_defaults(h100, found)).changes_outputs
    b200 = load_profile("b200").model_copy(update={"kv_cache_dtype": "auto"})
    assert not make_profiled(b200, make_defaults(b200, STANDARD)).changes_outputs
