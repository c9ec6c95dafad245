"""What a stage is declared to be, and what is refused that says it is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from finished_stage import stage_record

from pipeline.core.errors import EvidenceError
from pipeline.core.record import Record
from pipeline.core.stage import Stage, WorkerRuntime


class Wanted(Record):
    size: int
    later: str = ""  # earlier evidence does not have it


class Found(Record):
    weight: float


WEIGH = Stage("weigh", 2, Wanted, WorkerRuntime, Found)


def test_its_key_is_of_what_it_is_asked_and_of_its_revision(tmp_path: Path) -> None:
    def key(stage: Any, size: int, environment: str = "serve") -> str:
        runtime = WorkerRuntime(environment=environment)
        return str(stage.spec("v", Wanted(size=size), {}, runtime, tmp_path).key)

    assert key(WEIGH, 1) == key(WEIGH, 1, "another place")
    assert len({key(WEIGH, 1), key(WEIGH, 2), key(replace(WEIGH, revision=3), 1)}) == 3


def test_a_spec_says_it_all_again(tmp_path: Path) -> None:
    spec = WEIGH.spec("v", Wanted(size=1), {}, WorkerRuntime(environment="serve"), tmp_path)
    assert WEIGH.parameters_of(spec) == Wanted(size=1)
    assert WEIGH.runtime_of(spec).environment == "serve"
    assert "python" not in spec.runtime  # filled in by who runs it


def test_a_record_of_before_lacks_a_later_key_and_keeps_what_was_written() -> None:
    kept = WEIGH.typed(stage_record(stage="weigh", parameters={"size": 1}, result={"weight": 2}))
    assert kept.parameters == Wanted(size=1)
    assert kept.result.weight == 2.0
    assert kept.record.parameters == {"size": 1}


@pytest.mark.parametrize(
    ("result", "key"), [({"weight": "much"}, "weight"), ({}, "weight"), ({"odd": 1}, "weight")]
)
def test_a_result_of_another_shape_is_refused(result: dict[str, Any], key: str) -> None:
    kept = WEIGH.typed(stage_record(stage="weigh", parameters={"size": 1}, result=result))
    with pytest.raises(EvidenceError, match=key) as caught:
        _ = kept.result
    assert caught.value.where == "stages/weigh/abc"
