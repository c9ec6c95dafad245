"""Lives that alternate, by the real load generator: a process a life, which asks what the other
side of its pair was asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from answering_socket import answering

from eval_gates.speed.invalid_reasons import find_side_differences
from eval_gates.speed.load_run import LOADS, read_loads
from eval_gates.speed.throughput_ratio import ThroughputRatioRule, pair_sides
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
RULE = ThroughputRatioRule(
    min_ratio=0.5, alpha=0.05, blocks=2, server_mode="interleaved", loads_per_server_run=2
)


APART = ThroughputRatioRule(
    min_ratio=0.5, alpha=0.05, blocks=2, server_mode="swapped", loads_per_server_run=30
)


def stage(
    store: Path, tokenizer: Path, *sockets: Path, rule: ThroughputRatioRule = RULE
) -> StageSpec:
    """The stage, with the servers up that it calls for next."""
    served = ServedModel()
    parameters = SpeedParameters(
        name="small",
        workload=SMALL.model_dump(),
        rule=rule,
        sides={"candidate": served, "baseline": served},
    )
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    runtime = SpeedRuntime(tokenizer=str(tokenizer), environment="serve", python=str(python))
    spec = SPEED.spec("fp8", parameters, {}, runtime, store)
    sides = course_of(spec, Store(store)).next_sides()
    endpoints = {
        side: ServerRuntime(url="http://localhost", model="m", socket=str(socket))
        for side, socket in zip(sides, sockets, strict=True)
    }
    up = runtime.model_copy(update={"endpoints": endpoints})
    return SPEED.spec("fp8", parameters, {}, up, store)


def test_both_sides_of_a_pair_are_asked_the_same(demo_model: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    record, server_runs = None, 0
    while record is None:
        with answering(tmp_path / f"s{server_runs}") as socket:
            record = advance(stage(store, demo_model, socket), Store(store), NullProgress())
        server_runs += 1
    found = SpeedResult.model_validate(record.result)
    # The client's lag is long against a server that answers immediately: a pair may be refused.
    assert server_runs == found.server_runs == 2 * found.units
    loads = read_loads(Store(store).stage_folder("speed", record.key) / LOADS)
    pairs = pair_sides(loads)
    assert len(pairs) == 2 * found.units > 0
    assert not [cause for pair in pairs for cause in find_side_differences(*pair)]
    assert len({baseline.prompts_sha256 for baseline, _ in pairs}) == len(pairs)
    assert not any(error for load in loads for error in load.requests.error)


def test_both_loads_of_a_block_run_at_the_same_time(demo_model: Path, tmp_path: Path) -> None:
    """Each by a separate process, with the same prompts, before and after the swap."""
    store = tmp_path / "store"
    record, server_runs = None, 0
    while record is None:
        first, second = (tmp_path / f"s{server_runs}.{place}" for place in range(2))
        with answering(first) as one, answering(second) as other:
            spec = stage(store, demo_model, one, other, rule=APART)
            record = advance(spec, Store(store), NullProgress())
        server_runs += 1
    found = SpeedResult.model_validate(record.result)
    assert server_runs == found.server_runs >= 2
    loads = read_loads(Store(store).stage_folder("speed", record.key) / LOADS)
    pairs = pair_sides(loads)
    assert len(pairs) == found.units > 30
    assert not [cause for pair in pairs for cause in find_side_differences(*pair)]
    # Begun within less than a load lasts.
    assert all(abs(a.started - b.started) < max(a.seconds, b.seconds) for a, b in pairs)
    assert {a.order for a, _ in pairs[:30]} != {a.order for a, _ in pairs[30:]}
    assert not any(error for load in loads for error in load.requests.error)
