from __future__ import annotations

from typing import Any

import pytest
from finished_stage import stage_record

from pipeline.stages import STAGES, known_of, newest_revision, stage_code, stage_named


@pytest.mark.parametrize("name", STAGES)
def test_is_declared_and_has_its_code(name: str) -> None:
    assert stage_named(name).name == name
    assert newest_revision(name) == stage_named(name).revision >= 1
    assert callable(stage_code(name).run)


@pytest.mark.parametrize("name", ["context", "verify", "__init__", "..judge", ""])
def test_nothing_else_is_a_stage(name: str) -> None:
    with pytest.raises(KeyError):
        stage_named(name)
    with pytest.raises(KeyError):
        stage_code(name)


def test_records_of_other_versions_are_left_out() -> None:
    screen: dict[str, Any] = {"stage": "sanity", "parameters": {}}
    records = [
        stage_record(**screen, key="good", result={"nats": 1.5}),
        stage_record(**screen, key="of another shape", result={"loudness": 1.5}),
        stage_record(stage="verify", key="of another name"),
    ]
    assert [kept.record.key for kept in known_of(records)] == ["good"]
