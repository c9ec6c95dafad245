"""A block by the real load client: all arms are asked the same, with a worker for each fresh start,
and one for servers that stay up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from answering_socket import answering

from eval_gates.speed.rules import SpeedRule
from eval_gates.speed.schedule import Starts
from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.serving.served_model import ServedModel
from pipeline.stages.block import BlockArm, BlockParameters, BlockRuntime, block_spec, find_blocks
from pipeline.stages.context import advance
from prepare.errors import PrepareError
from prepare.events import NullProgress
from prepare.stage import StageRecord, StageReference
from prepare.store import RECORD, Store
from recipes.accelerator import Accelerator
from recipes.workload import Arrivals, RandomWorkload

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.of_everything,
]

SMALL = RandomWorkload(
    kind="random", input_tokens=16, output_tokens=4, seconds=1, arrivals=Arrivals(concurrency=2)
)
RULE = SpeedRule(kind="ratio", min_ratio=0.5, alpha=0.05, blocks=2)


class Answering:
    """A server for each arm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.groups: list[list[str]] = []

    @contextmanager
    def up(self, names: Sequence[str], *, stay: bool) -> Iterator[dict[str, dict[str, Any]]]:
        self.groups.append(list(names))
        with ExitStack() as held:
            yield {
                name: {
                    "url": "http://localhost",
                    "model": "m",
                    "socket": str(
                        held.enter_context(answering(self.folder / f"{len(self.groups)}.{name}"))
                    ),
                }
                for name in names
            }

    def leave(self, name: str, error: PrepareError) -> None:
        raise error


@pytest.mark.parametrize(("starts", "groups"), [("fresh", 6), ("once", 2)])
def test_all_arms_of_a_block_are_asked_the_same(
    demo_model: Path, tmp_path: Path, starts: Starts, groups: int
) -> None:
    store = Store(tmp_path / "store")
    sanity = finished_sanity(store)
    arms = ("baseline", "awq", "fp8")
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    runtime = BlockRuntime(
        arms={arm: BlockArm(served=ServedModel(), sanity=sanity) for arm in arms},
        tokenizer=str(demo_model),
        environment="serve",
        python=str(python),
    )
    measurement = BlockParameters(
        name="small",
        workload=SMALL.model_dump(),
        rule=RULE.model_copy(update={"starts": starts}),
        arms=dict.fromkeys(arms, "k"),
    )
    servers = Answering(tmp_path)
    for number in range(2):
        advance(
            block_spec(measurement, number, runtime, store.root), store, NullProgress(), servers
        )
    blocks = list(find_blocks(measurement, store, {}))
    assert [sorted(block.result.arms) for block in blocks] == [sorted(arms)] * 2
    assert len(servers.groups) == groups
    assert [len({load.prompts_sha256 for load in block.loads}) for block in blocks] == [1, 1]
    assert len({block.loads[0].prompts_sha256 for block in blocks}) == 2
    assert not any(error for b in blocks for load in b.loads for error in load.requests.error)


def finished_sanity(store: Store) -> StageReference:
    """A stage with a record, which is all that a block asks of it."""
    folder = store.stage_folder("sanity", "k")
    folder.mkdir(parents=True)
    record = StageRecord(
        **{"stage": "sanity", "variant": "v", "key": "k", "parameters": {}, "inputs": {}},
        **{"input_digests": {}, "result": {}, "notes": [], "seconds": 1.0, "finished": ""},
    )
    (folder / RECORD).write_text(record.model_dump_json())
    return record.as_reference()
