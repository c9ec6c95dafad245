"""What `prepare tune` tries, as data: each is one that its engine takes, and names its lever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from some_node import NODE

from pipeline.plan.tuned_arm import add_candidate, make_defaults
from prepare.errors import UsageError
from recipes.catalog import load_profile
from recipes.engine_arguments import DIVIDES_GPUS, count_gpus
from recipes.tuning_candidates import ServingCandidate, load_candidates

STANDARD = load_candidates("standard")
BATCHING: dict[str, Any] = {"engine_arguments": {"max-num-seqs": 8}}


@pytest.mark.parametrize(("name", "accelerator"), [("cpu", "cpu"), ("h100", "cuda")])
def test_the_engine_knows_what_is_tried(name: str, accelerator: str) -> None:
    defaults = make_defaults(load_profile(name), STANDARD)
    tried = {n: c for n, c in STANDARD.candidates.items() if c.accelerator == accelerator}
    assert len(tried) >= 5
    for candidate_name, candidate in tried.items():
        screened = add_candidate(candidate_name, candidate, defaults)
        assert screened.profile != defaults.profile
        assert not screened.profile.engine_arguments.keys() - {
            *defaults.profile.engine_arguments,
            *candidate.engine_arguments,
        }


@pytest.mark.parametrize("name", DIVIDES_GPUS)
def test_what_a_server_is_spread_over_is_counted_whole(name: str) -> None:
    defaults = make_defaults(load_profile("h100"), STANDARD)
    twice = ServingCandidate(engine_arguments={name: 2})
    doubled = add_candidate("twice", twice, defaults).serving(NODE)
    before = count_gpus(defaults.serving(NODE).engine_arguments)
    assert count_gpus(doubled.engine_arguments) == 2 * before


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"candidates": {}}, "candidates"),
        ({"candidates": {"a": {}}}, "candidates.a"),
        ({"candidates": {"engine-defaults": BATCHING}}, "candidates.engine-defaults"),
        ({"candidates": {"a": {**BATCHING, "leaver": 1}}}, "candidates.a.leaver"),
        (
            {"candidates": {"a": {**BATCHING, "engine_arguments": {"data-parallel-size": "two"}}}},
            "candidates.a.engine_arguments",
        ),
        ({"repetitions": 0}, "repetitions"),
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
