"""The stage hands the worker loads and endpoints, draws a killed block again, keeps the complete
arms of a block that lost one, and keeps no prompt of a user's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from finished_stage import put_record, stage_record, unfinished_folder
from listener import Listener
from measured_loads import block as measured_block

from eval_gates.speed.load_run import LOADS, LoadLog, LoadRun, read_loads
from eval_gates.speed.rules import SpeedRule
from eval_gates.speed.schedule import Starts
from pipeline.serving.served_model import ServedModel
from pipeline.stages import block
from pipeline.stages.block import (
    ArmLostError,
    BlockArm,
    BlockParameters,
    BlockResult,
    BlockRuntime,
    block_spec,
)
from pipeline.stages.context import StageContext
from prepare.errors import PrepareError, ServingError, StageError
from prepare.stage import StageReference
from prepare.store import Store

RANDOM = {"kind": "random", "input_tokens": 8, "output_tokens": 4}
ARMS = ("awq", "baseline", "fp8")


@dataclass
class Endpoints:
    """Endpoints of all arms; `left` are arms that the block went on without."""

    groups: list[list[str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @contextmanager
    def up(self, names: Sequence[str], *, stay: bool) -> Iterator[dict[str, dict[str, Any]]]:
        self.groups.append(list(names))
        yield {
            name: {"url": "http://localhost", "model": "m", "server_log": f"{name}.log"}
            for name in names
        }

    def leave(self, name: str, error: PrepareError) -> None:
        if name == "baseline":
            raise error
        self.left.append(name)


class Context(StageContext[BlockParameters, BlockRuntime]):
    asked: list[dict[str, Any]]
    lost: dict[str, Exception]
    prompts: list[Any]

    def run_worker(self, worker: str, worker_spec: dict[str, Any], **given: Any) -> dict[str, Any]:
        assert worker == "eval_gates.speed.speed_worker"
        worker_spec = json.loads(json.dumps(worker_spec))  # as it reaches the worker
        self.asked.append(worker_spec)
        for load in worker_spec["loads"]:
            if load["workload"]["kind"] == "requests":
                lines = Path(load["workload"]["file"]).read_text().splitlines()
                self.prompts += map(json.loads, lines)
        for arm in worker_spec["arms"]:
            for load in worker_spec["loads"]:
                if error := self.lost.pop(arm["arm"], None):
                    raise error
                drawn = {name: arm[name] for name in ("side", "block", "server_run", "order")}
                names = {"seed": load["seed"], "workload": load["name"]}
                (made,) = measured_block(0, 1.0)[:1]
                LoadLog(self.folder).append([made.model_copy(update={**drawn, **names})])
        return {"prompts_drawn_by": "vllm 0.32.0"}


def context(
    tmp_path: Path, starts: Starts = "once", workload: dict[str, Any] | None = None, **runtime: Any
) -> Context:
    store = Store(tmp_path)
    sanity = StageReference(stage="sanity", key="k")
    if store.find("sanity", "k") is None:
        put_record(store, stage_record(stage="sanity", key="k", inputs={}, input_digests={}))
    rule = SpeedRule(kind="ratio", min_ratio=0.5, alpha=0.05, blocks=3, starts=starts)
    measurement = BlockParameters(
        name="chat", workload=workload or RANDOM, rule=rule, arms=dict.fromkeys(ARMS, "k")
    )
    taking_part = {arm: BlockArm(served=ServedModel(), sanity=sanity) for arm in ARMS}
    asked = BlockRuntime(arms=taking_part, tokenizer="t", **runtime)
    spec = block_spec(measurement, 1, asked, store.root)
    folder = unfinished_folder(store, "block", spec.key)
    folder.mkdir(parents=True, exist_ok=True)
    made = Context(spec, folder, store, Listener())
    made.servers = Endpoints()
    made.asked = []
    made.lost = {}
    made.prompts = []
    return made


def loads_of(stage: Context) -> list[LoadRun]:
    return read_loads(stage.folder / LOADS)


def measured(stage: Context) -> BlockResult:
    return block.run(stage)


def test_prompts_of_a_file_are_there_only_while_they_are_sent(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps([{"conversations": [{"from": "human", "value": "Secret"}]}]))
    prompts = {"kind": "requests", "file": "its digest", "output_tokens": 4}
    stage = context(tmp_path, workload=prompts, file=str(file))
    measured(stage)
    assert stage.prompts == [{"prompt": "Secret"}]
    assert not any("Secret" in path.read_text() for path in stage.folder.iterdir())


@pytest.mark.parametrize(("starts", "groups"), [("once", 1), ("fresh", 3)])
def test_all_arms_are_asked_the_same_in_the_drawn_order(
    tmp_path: Path, starts: Starts, groups: int
) -> None:
    """One worker for servers that stay up, and one for each fresh start."""
    stage = context(tmp_path, starts)
    found = measured(stage)
    assert len(stage.asked) == groups
    assert sorted(found.arms) == list(ARMS)
    loads = loads_of(stage)
    assert [load.order for load in loads] == [0, 1, 2]
    assert len({load.seed for load in loads}) == 1
    sides = ["baseline" if arm == "baseline" else "candidate" for arm in found.arms]
    assert [load.side for load in loads] == sides


@pytest.mark.parametrize("starts", ["once", "fresh"])
@pytest.mark.parametrize("lost", ["awq", "fp8"])
def test_a_block_goes_on_without_an_arm_that_is_lost(
    tmp_path: Path, starts: Starts, lost: str
) -> None:
    stage = context(tmp_path, starts)
    stage.lost = {lost: ServingError("not one of 8 requests was answered", where=lost)}
    found = measured(stage)
    assert found.failed == [lost]
    assert sorted(found.arms) == sorted(set(ARMS) - {lost})
    assert len(loads_of(stage)) == 2
    asked = [arm["arm"] for worker in stage.asked for arm in worker["arms"]]
    assert len(loads_of(stage)) == len({arm for arm in asked if arm != lost})


def test_an_arm_that_ended_after_its_load_is_taken_out(tmp_path: Path) -> None:
    class Ending(Endpoints):
        @contextmanager
        def up(self, names: Sequence[str], *, stay: bool) -> Iterator[dict[str, dict[str, Any]]]:
            with super().up(names, stay=stay) as facts:
                yield facts
            if "fp8" in names:
                lost = ArmLostError("it ended")
                lost.arm = "fp8"
                raise lost

    stage = context(tmp_path)
    stage.servers = Ending()
    found = measured(stage)
    assert (found.failed, sorted(found.arms)) == (["fp8"], ["awq", "baseline"])
    sides = ["baseline" if arm == "baseline" else "candidate" for arm in found.arms]
    assert [load.side for load in loads_of(stage)] == sides


@pytest.mark.parametrize(
    ("arm", "error", "where"),
    [
        ("baseline", ServingError("no answer", where="baseline"), "baseline.log"),
        ("fp8", StageError("the worker died", where="there"), "there"),
    ],
)
def test_a_baseline_or_something_shared_ends_the_block(
    tmp_path: Path, arm: str, error: PrepareError, where: str
) -> None:
    stage = context(tmp_path)
    stage.lost = {arm: error}
    with pytest.raises(PrepareError) as caught:
        measured(stage)
    assert caught.value.where == where


@pytest.mark.parametrize("torn", [b"", b'{"torn', b"x\n"])
def test_a_killed_block_is_drawn_again_whole(tmp_path: Path, torn: bytes) -> None:
    stage = context(tmp_path)
    stage.lost = {"baseline": ServingError("no answer", where="baseline")}
    with pytest.raises(ServingError):
        measured(stage)
    with (stage.folder / LOADS).open("ab") as file:
        file.write(torn)
    seeds = [load["seed"] for load in stage.asked[0]["loads"]]
    found = measured(stage)
    assert found.starts == 2
    loads = loads_of(stage)
    assert len(loads) == 3
    assert {load.server_run for load in loads} == {1}
    assert loads[0].seed not in seeds
