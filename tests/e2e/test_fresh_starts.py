"""Fresh starts, by the real load client: a process a start, which asks what the other side of its
block was asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from answering_socket import answering

from eval_gates.speed.invalid_reasons import find_side_differences
from eval_gates.speed.load_run import LOADS, read_loads
from eval_gates.speed.rules import RatioRule
from pipeline.core.events import NullProgress
from pipeline.core.stage_record import StageSpec
from pipeline.core.store import Store
from pipeline.environments.environment import Accelerator, ensure
from pipeline.environments.settings import load_settings
from pipeline.serving.served_model import ServedModel, ServerRuntime
from pipeline.stages.context import advance
from pipeline.stages.speed import SPEED, SpeedParameters, SpeedResult, SpeedRuntime
from pipeline.stages.speed.run import course_of
from recipes.workload import Arrivals, RandomWorkload

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.of_everything,
]

SMALL = RandomWorkload(
    kind="random", input_tokens=16, output_tokens=4, seconds=1, arrivals=Arrivals(concurrency=2)
)
RULE = RatioRule(min_ratio=0.5, alpha=0.05, blocks=2)


def stage(store: Path, tokenizer: Path, socket: Path) -> StageSpec:
    """The stage, with the server up that it calls for next."""
    served = ServedModel()
    parameters = SpeedParameters(
        name="small",
        workload=SMALL.model_dump(),
        rule=RULE,
        sides={"candidate": served, "baseline": served},
    )
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    runtime = SpeedRuntime(tokenizer=str(tokenizer), environment="serve", python=str(python))
    spec = SPEED.spec("fp8", parameters, {}, runtime, store)
    (side,) = course_of(spec, Store(store)).next_sides()
    endpoints = {side: ServerRuntime(url="http://localhost", model="m", socket=str(socket))}
    up = runtime.model_copy(update={"endpoints": endpoints})
    return SPEED.spec("fp8", parameters, {}, up, store)


def test_both_sides_of_a_block_are_asked_the_same(demo_model: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    record, server_runs = None, 0
    while record is None:
        with answering(tmp_path / f"s{server_runs}") as socket:
            record, _ = advance(stage(store, demo_model, socket), Store(store), NullProgress())
        server_runs += 1
    found = SpeedResult.model_validate(record.result)
    # The client's lag is long against a server that answers immediately: a block may be refused.
    assert server_runs == found.server_runs == 2 * found.units
    loads = read_loads(Store(store).stage_folder("speed", record.key) / LOADS)
    blocks = RULE.units(loads)
    assert len(blocks) == found.units >= 2
    assert not [cause for block in blocks for cause in find_side_differences(block)]
    assert len({block[0].prompts_sha256 for block in blocks}) == len(blocks)
    assert [load.server_run for load in loads] == list(range(server_runs))
    assert not any(error for load in loads for error in load.requests.error)
