"""The stage hands the worker the workload and both endpoints, and keeps no prompt of a user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from loose_stage import stage_spec

from artifacts.stages.speed import SpeedParameters, SpeedRuntime
from eval_gates.speed.load import LOADS
from pipeline.core.errors import ServingError
from pipeline.core.process_environment import Need
from pipeline.core.store import Store
from pipeline.stages import speed
from pipeline.stages.context import StageContext

RANDOM = {"kind": "random", "input_tokens": 8, "output_tokens": 4}


class Context(StageContext[SpeedParameters, SpeedRuntime]):
    """Its worker measures nothing."""

    asked: dict[str, Any]
    given: dict[str, Any]
    fails = False

    def run_worker(self, worker: str, worker_spec: dict[str, Any], **given: Any) -> dict[str, Any]:
        assert worker == "speed"
        self.asked, self.given = worker_spec, given
        if self.fails:
            raise ServingError("not one of 8 requests was answered: OSError")
        if worker_spec["workload"]["kind"] == "requests":
            file = Path(worker_spec["workload"]["file"])
            self.asked["prompts"] = [json.loads(line) for line in file.read_text().splitlines()]
        (self.folder / LOADS).write_text("")
        return {"units": 3, "state": "pass"}


def context(tmp_path: Path, workload: dict[str, Any], **runtime: Any) -> Context:
    endpoint = {"url": "http://localhost", "model": "model", "server_log": "server.log"}
    endpoints = {"baseline": {**endpoint, "socket": "a"}, "candidate": {**endpoint, "socket": "b"}}
    spec = stage_spec(
        "speed",
        "fp8",
        {
            **{"claim": "ratio", "name": "chat", "workload": workload, "rule": {"minimum": 1.0}},
            "sides": {"baseline": {}, "candidate": {}},
        },
        {},
        {"endpoints": endpoints, "tokenizer": "t", **runtime},
        tmp_path,
    )
    folder = tmp_path / "stage"
    folder.mkdir()
    return Context(spec, folder, Store(tmp_path), Listener())


def test_it_says_whom_to_ask_and_draws_its_traffic_anew(tmp_path: Path) -> None:
    stage = context(tmp_path, RANDOM)
    first, second = speed.run(stage), speed.run(stage)
    assert (first.state, first.units) == ("pass", 3)
    assert first.seed != second.seed
    assert stage.given["environment"]["PYTHONHASHSEED"] == "0"
    assert stage.given["needs"] == []
    endpoint = stage.asked["endpoints"]["candidate"]
    assert endpoint["socket"] == "b"
    assert endpoint["counters"]["prefix_cache_hits"] == "vllm:prefix_cache_hits_total"


def test_an_endpoint_of_someone_else_may_want_a_key(tmp_path: Path) -> None:
    stage = context(tmp_path, RANDOM, endpoints={"candidate": {"url": "u", "model": "m"}})
    speed.run(stage)
    assert stage.given["needs"] == [Need.ENDPOINT]


def test_prompts_of_a_file_are_there_only_while_they_are_sent(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps([{"conversations": [{"from": "human", "value": "Secret"}]}]))
    prompts = {"kind": "requests", "file": "its digest", "output_tokens": 4}
    stage = context(tmp_path, prompts, file=str(file))
    speed.run(stage)
    assert stage.asked["prompts"] == [{"prompt": "Secret"}]
    assert not any("Secret" in path.read_text() for path in stage.folder.iterdir())


def test_an_endpoint_that_answers_nothing_is_named_by_its_log(tmp_path: Path) -> None:
    stage = context(tmp_path, RANDOM)
    stage.fails = True
    with pytest.raises(ServingError, match="not one of 8") as caught:
        speed.run(stage)
    assert caught.value.where == "server.log"


@pytest.mark.xfail(strict=True, reason="blocks of a killed measurement are thrown away: not built")
def test_a_measurement_that_was_killed_goes_on_with_its_blocks(tmp_path: Path) -> None:
    """Else each kill is another chance of lucky blocks, which nobody counts."""
    stage = context(tmp_path, RANDOM)
    stage.fails = True
    with pytest.raises(ServingError):
        speed.run(stage)
    killed = stage.asked["seed"]
    stage.fails = False
    assert speed.run(stage).seed == killed
