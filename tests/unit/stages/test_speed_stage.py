"""The stage hands the worker the workload and the endpoints, goes on with what a killed try has
measured, and keeps no prompt of a user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from finished_stage import unfinished_folder
from listener import Listener
from loose_stage import stage_spec
from measured_loads import block

from eval_gates.speed.load_run import LOADS, LoadLog, LoadRun, read_loads
from eval_gates.speed.rules import SpeedRule
from eval_gates.speed.schedule import draw_block
from pipeline.stages import speed
from pipeline.stages.context import StageContext
from pipeline.stages.speed import SpeedParameters, SpeedResult, SpeedRuntime
from prepare.errors import ServingError
from prepare.store import Store

RANDOM = {"kind": "random", "input_tokens": 8, "output_tokens": 4}
RULE = {"kind": "ratio", "min_ratio": 0.5, "alpha": 0.05, "blocks": 3, "starts": "once"}


class Context(StageContext[SpeedParameters, SpeedRuntime]):
    asked: dict[str, Any]
    given: dict[str, Any]
    fails_after: int | None = None

    def run_worker(self, worker: str, worker_spec: dict[str, Any], **given: Any) -> dict[str, Any]:
        assert worker == "eval_gates.speed.speed_worker"
        worker_spec = json.loads(json.dumps(worker_spec))  # as it reaches the worker
        self.asked, self.given = worker_spec, given
        if worker_spec["workload"]["kind"] == "requests":
            file = Path(worker_spec["workload"]["file"])
            self.asked["prompts"] = [json.loads(line) for line in file.read_text().splitlines()]
        log, rule = LoadLog(self.folder), SpeedRule.model_validate(worker_spec["rule"])
        start, loads, new = worker_spec["start"], log.loads(), 0
        while rule.needs_more(loads):
            if new == self.fails_after:
                raise ServingError("not one of 8 requests was answered: OSError")
            number = len(loads) // 2
            _, seed = draw_block(start["seed"], number, start["server_run"], rule.sides)
            drawn = {"seed": seed, "server_run": start["server_run"]}
            unit = [load.model_copy(update=drawn) for load in block(number, 1.0)]
            log.append(unit)
            loads, new = loads + unit, new + 1
        return {"prompts_drawn_by": "vllm 0.32.0"}


def running(side: str) -> dict[str, Any]:
    asked = {"chat": False, "deployment_id": "d", "tokenizer": "t"}
    return {"side": side, "url": "http://localhost", "model": "model", **asked}


def context(tmp_path: Path, workload: dict[str, Any], **runtime: Any) -> Context:
    endpoint = {"url": "http://localhost", "model": "model", "server_log": "server.log"}
    endpoints = {"baseline": {**endpoint, "socket": "a"}, "candidate": {**endpoint, "socket": "b"}}
    rule = {**RULE, **runtime.pop("rule", {})}
    spec = stage_spec(
        "speed",
        "fp8",
        {
            **{"name": "chat", "workload": workload, "rule": rule},
            "sides": {side: {"endpoint": running(side)} for side in endpoints},
        },
        {},
        {"endpoints": endpoints, "tokenizer": "t", **runtime},
        tmp_path,
    )
    store = Store(tmp_path)
    folder = unfinished_folder(store, "speed", spec.key)
    folder.mkdir(parents=True)
    return Context(spec, folder, store, Listener())


def done(stage: Context) -> SpeedResult:
    return speed.run(stage)


def test_prompts_of_a_file_are_there_only_while_they_are_sent(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps([{"conversations": [{"from": "human", "value": "Secret"}]}]))
    prompts = {"kind": "requests", "file": "its digest", "output_tokens": 4}
    stage = context(tmp_path, prompts, file=str(file))
    speed.run(stage)
    assert stage.asked["prompts"] == [{"prompt": "Secret"}]
    assert stage.folder.is_dir()
    assert not any("Secret" in path.read_text() for path in stage.folder.iterdir())


def test_an_endpoint_that_answers_nothing_is_named_by_its_log(tmp_path: Path) -> None:
    stage = context(tmp_path, RANDOM)
    stage.fails_after = 0
    with pytest.raises(ServingError) as caught:
        speed.run(stage)
    assert caught.value.where == "server.log"


def loads_of(stage: Context) -> list[LoadRun]:
    return read_loads(stage.folder / LOADS)


class TestKilled:
    def test_a_measurement_goes_on_with_its_blocks(self, tmp_path: Path) -> None:
        stage = context(tmp_path, RANDOM)
        stage.fails_after = 2
        with pytest.raises(ServingError):
            speed.run(stage)
        kept = loads_of(stage)
        stage.fails_after = None
        found = done(stage)
        assert (found.units, found.server_runs) == (3, 2)
        loads = loads_of(stage)
        assert loads[:4] == kept
        assert [load.server_run for load in loads] == [0] * 4 + [1] * 2
        assert len({load.seed for load in loads}) == 3
        assert "2 blocks" in "".join(stage.notes)

    def test_a_block_that_was_half_measured_is_thrown_away(self, tmp_path: Path) -> None:
        stage = context(tmp_path, RANDOM)
        stage.fails_after = 2
        with pytest.raises(ServingError):
            speed.run(stage)
        file = stage.folder / LOADS
        first, *_ = lines = file.read_bytes().splitlines(keepends=True)
        stage.fails_after = None
        torn_anywhere = (lines[:3], [*lines[:2], first[:20]], [*lines[:3], first[:-1]])
        for torn in torn_anywhere:
            file.write_bytes(b"".join(torn))
            assert done(stage).units == 3
            assert [load.block for load in loads_of(stage)] == [0, 0, 1, 1, 2, 2]
