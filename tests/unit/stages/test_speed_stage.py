"""The stage hands the worker the workload and the endpoints, goes on with what a killed try has
measured, and keeps no prompt of a user's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from listener import Listener
from loose_stage import stage_spec
from measured_loads import block

from eval_gates.speed.gate_rule import parse_rule
from eval_gates.speed.load_log import LoadLog
from eval_gates.speed.load_run import LOADS, Interference, LoadRun, read_loads
from eval_gates.speed.randomization import Randomization
from eval_gates.speed.server_runs import ServerRun, ServerRunSchedule
from pipeline.core.errors import ServingError, StoreError
from pipeline.core.process_environment import NetworkAccess
from pipeline.core.stage_record import StageRecord
from pipeline.core.store import RECORD, Store
from pipeline.stages.context import StageContext
from pipeline.stages.speed import SpeedParameters, SpeedResult, SpeedRuntime
from pipeline.stages.speed import run as speed

RANDOM = {"kind": "random", "input_tokens": 8, "output_tokens": 4}
RULE = {"kind": "ratio", "min_ratio": 0.5, "alpha": 0.05, "blocks": 3}


THROTTLED = {"interference": [Interference(kind="throttled", what="power cap")]}


class Context(StageContext[SpeedParameters, SpeedRuntime]):
    """Its worker measures so many blocks, or the loads of its life, and then may fail."""

    asked: dict[str, Any]
    given: dict[str, Any]
    fails_after: int | None = None
    disturbed: int = 0  # blocks that are, from the first on

    def run_worker(self, worker: str, worker_spec: dict[str, Any], **given: Any) -> dict[str, Any]:
        assert worker == "pipeline.workers.speed"
        worker_spec = json.loads(json.dumps(worker_spec))  # as it reaches the worker
        self.asked, self.given = worker_spec, given
        server_run = ServerRun(**worker_spec["server_run"])
        if worker_spec["workload"]["kind"] == "requests":
            file = Path(worker_spec["workload"]["file"])
            self.asked["prompts"] = [json.loads(line) for line in file.read_text().splitlines()]
        book, rule = LoadLog(self.folder), parse_rule(worker_spec["rule"])
        lives = rule.schedule(worker_spec["sides"])
        before, new = book.loads(), 0
        units = self.pairs_of(lives, server_run) if lives.loads else self.blocks_of(server_run)
        for unit in units:
            if new == self.fails_after:
                raise ServingError("not one of 8 requests was answered: OSError")
            if not lives.loads and not rule.needs_more(before):
                break
            book.append(unit)
            before, new = before + unit, new + 1
        return {"load_generator": "vllm 0.32.0"}

    def blocks_of(self, server_run: ServerRun) -> Iterator[list[LoadRun]]:
        draw = Randomization(server_run.draw, server_run.sides)
        for number in count(server_run.block):
            seed, _ = draw.next_unit()
            drawn = {"seed": seed, "server_run": server_run.number}
            power_cap = THROTTLED if number < self.disturbed else {}
            yield [load.model_copy(update=drawn | power_cap) for load in block(number, 1.0)]

    def pairs_of(self, lives: ServerRunSchedule, server_run: ServerRun) -> Iterator[list[LoadRun]]:
        _, seeds = lives.draw_pair(server_run.draw)
        done = server_run.block % len(seeds)
        for number, seed in enumerate(seeds[done:], start=server_run.block):
            drawn = {"seed": seed, "server_run": server_run.number, "order": server_run.order}
            both = [load.model_copy(update=drawn) for load in block(number, 1.0)]
            yield [load for load in both if load.side in server_run.sides]


def context(tmp_path: Path, workload: dict[str, Any], **runtime: Any) -> Context:
    endpoint = {"url": "http://localhost", "model": "model", "server_log": "server.log"}
    endpoints = {"baseline": {**endpoint, "socket": "a"}, "candidate": {**endpoint, "socket": "b"}}
    rule = {**RULE, **runtime.pop("rule", {})}
    spec = stage_spec(
        "speed",
        "fp8",
        {
            **{"name": "chat", "workload": workload, "rule": rule},
            "sides": {"baseline": {}, "candidate": {}},
        },
        {},
        {"endpoints": endpoints, "tokenizer": "t", **runtime},
        tmp_path,
    )
    store = Store(tmp_path)
    folder = store.unfinished_folder("speed", spec.key)
    return Context(spec, folder, store, Listener())


def done(stage: Context) -> SpeedResult:
    found = speed.run(stage)
    assert found is not None
    return found


def test_it_says_whom_to_ask_and_draws_its_traffic_anew(tmp_path: Path) -> None:
    stage = context(tmp_path, RANDOM)
    first, second = done(stage), done(context(tmp_path / "other", RANDOM))
    assert (first.state, first.units, first.server_runs) == ("open", 5, 1)  # two of warm-up
    assert first.seed != second.seed
    assert stage.given["environment"]["PYTHONHASHSEED"] == "0"
    assert stage.given["needs"] == []
    endpoint = stage.asked["endpoints"]["candidate"]
    assert endpoint["socket"] == "b"
    assert endpoint["counters"]["prefix_cache_hits"] == "vllm:prefix_cache_hits_total"


def test_an_endpoint_of_someone_else_may_want_a_key(tmp_path: Path) -> None:
    stage = context(tmp_path, RANDOM, endpoints={"candidate": {"url": "u", "model": "m"}})
    speed.run(stage)
    assert stage.given["needs"] == [NetworkAccess.ENDPOINT]


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
    """Else each kill is another chance of lucky blocks, which nobody counts."""

    def test_a_measurement_goes_on_with_its_blocks(self, tmp_path: Path) -> None:
        stage = context(tmp_path, RANDOM)
        stage.fails_after = 2
        with pytest.raises(ServingError):
            speed.run(stage)
        kept = loads_of(stage)
        stage.fails_after = None
        found = done(stage)
        # Both lives began with a warm-up, and the lost one counts as one of the five.
        assert (found.units, found.server_runs) == (6, 2)
        loads = loads_of(stage)
        assert loads[:4] == kept
        assert [load.server_run for load in loads] == [0] * 4 + [1] * 8
        assert len({load.seed for load in loads}) == 6
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
        # Each lost start is one of the three that count; at least one is measured.
        for torn, units in zip(torn_anywhere, (5, 4, 4), strict=True):
            file.write_bytes(b"".join(torn))
            found = done(stage)
            assert found.units == units
            assert [load.block for load in loads_of(stage)] == [n // 2 for n in range(2 * units)]

    def test_one_that_was_over_needs_no_server(self, tmp_path: Path) -> None:
        stage = context(tmp_path, RANDOM)
        first = done(stage)
        stage.fails_after = 0
        assert done(stage) == first.model_copy(update={"load_generator": ""})

    def test_blocks_of_other_weights_are_not_kept(self, tmp_path: Path) -> None:
        book = LoadLog(tmp_path)
        first = book.open({"candidate": "a"})
        book.append(block(0, 1.0))
        assert book.open({"candidate": "a"}) == first
        assert len(book.loads()) == 2
        assert book.open({"candidate": "b"}).seed != first.seed
        assert book.loads() == []

    def test_a_damaged_load_is_named(self, tmp_path: Path) -> None:
        (tmp_path / LOADS).write_text("{}\n")
        with pytest.raises(StoreError) as caught:
            LoadLog(tmp_path).loads()
        assert caught.value.where == str(tmp_path / LOADS)


class TestDisturbed:
    """What disturbances kept open is no finished stage: the next run continues it."""

    def run_whole(self, tmp_path: Path, disturbed: int) -> tuple[SpeedResult, Context]:
        """As a stage runner does it, with the record in the store."""
        stage = context(tmp_path, RANDOM, rule={"min_ratio": 0.9, "blocks": 8})
        with stage.store.open_for_writing("speed", stage.spec.key, speed.RESUMED) as folder:
            assert folder is not None
            stage.folder, stage.disturbed = folder, disturbed
            found = done(stage)
            record = StageRecord(
                **stage.spec.model_dump(
                    include={"stage", "variant", "key", "parameters", "inputs"}
                ),
                input_digests={},
                result=found.model_dump(mode="json"),
                **{"notes": [], "seconds": 0.0, "finished": ""},
            )
            (folder / RECORD).write_text(record.model_dump_json())
        return found, stage

    def test_the_next_run_continues_it(self, tmp_path: Path) -> None:
        first, stage = self.run_whole(tmp_path, disturbed=18)
        record = stage.store.find("speed", stage.spec.key)
        assert record is not None
        assert (first.state, first.began, first.units) == ("disturbed", [0], 18)
        assert speed.is_unfinished(record)
        stage.store.reopen("speed", stage.spec.key)
        assert stage.store.find("speed", stage.spec.key) is None
        second, stage = self.run_whole(tmp_path, disturbed=18)
        record = stage.store.find("speed", stage.spec.key)
        assert record is not None
        assert (second.began, second.seed, second.server_runs) == ([0, 1], first.seed, 2)
        assert (second.state, speed.is_unfinished(record)) == ("pass", False)
        loads = read_loads(stage.store.stage_folder("speed", stage.spec.key) / LOADS)
        assert [load.block for load in loads[::2]] == list(range(second.units))

    def test_a_reopened_one_that_was_killed_keeps_its_loads(self, tmp_path: Path) -> None:
        _, stage = self.run_whole(tmp_path, disturbed=18)
        for _ in range(2):  # the second finds it reopened
            stage.store.reopen("speed", stage.spec.key)
        assert len(speed.course_of(stage.spec, stage.store).loads) == 36


ALTERNATE = {"server_mode": "interleaved", "loads_per_server_run": 2}


class TestAlternating:
    def test_each_life_has_a_server_of_its_own_until_the_rule_is_over(self, tmp_path: Path) -> None:
        stage = context(tmp_path, RANDOM, rule=ALTERNATE)
        served, found = [], None
        while found is None:
            served.append(speed.course_of(stage.spec, stage.store).next_sides())
            found = speed.run(stage)
        assert (found.units, found.server_runs) == (3, 6)
        assert [len(sides) for sides in served] == [1] * 6
        assert all({*served[n], *served[n + 1]} == {*served[0], *served[1]} for n in (0, 2, 4))
        assert [load.server_run for load in loads_of(stage)] == [
            n for n in range(6) for _ in range(2)
        ]

    def test_what_a_life_had_left_another_of_its_side_measures(self, tmp_path: Path) -> None:
        """Thrown away, the first loads of a life would tell whether to kill it."""
        stage = context(tmp_path, RANDOM, rule=ALTERNATE)
        assert speed.run(stage) is None
        sides = speed.course_of(stage.spec, stage.store).next_sides()
        stage.fails_after = 1
        with pytest.raises(ServingError):
            speed.run(stage)
        kept = loads_of(stage)
        assert len(kept) == 3
        stage.fails_after = None
        assert speed.course_of(stage.spec, stage.store).next_sides() == sides
        while (found := speed.run(stage)) is None:
            pass
        loads = loads_of(stage)
        assert loads[:3] == kept
        assert [load.server_run for load in loads] == [0, 0, 1, 2, 3, 3, 4, 4]
        assert [load.seed for load in loads[:2]] == [load.seed for load in loads[2:4]]
        assert found.server_runs == 5
