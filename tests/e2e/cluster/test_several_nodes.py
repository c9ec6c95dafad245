"""A run whose servers are spread over three nodes of a Ray cluster, by vLLM's own means.

The demo model has nine heads, so three nodes have three each. Its servers are real; the nodes are
of one machine, and what they tell each other goes through the loopback.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ray_nodes import RayNodes
from store_processes import left_after
from test_whole_runs import asked_twice, check_promoted
from tiny_stages import wait_until
from whole_run import RECIPE, WholeRun, guards_of_servers

from recipes.catalog import load_profile
from recipes.engine_arguments import NODES

pytestmark = [pytest.mark.e2e, pytest.mark.of_everything, pytest.mark.timeout(1200)]
COUNT = 3
OF_A_PART = "--headless"


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    made = RayNodes(COUNT)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def run(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    folder = tmp_path_factory.mktemp("several")
    keys = load_profile("cpu").model_dump(mode="json", exclude_unset=True)
    keys["engine_arguments"] |= {"tensor-parallel-size": COUNT, NODES: COUNT}
    profile = folder / "spread.yaml"
    profile.write_text(yaml.safe_dump(keys))
    executor = {"kind": "ray", "address": nodes.address}
    return WholeRun(folder, executor, str(folder / "store"), profile=str(profile))


def test_this_machine_alone_is_refused_at_once(run: WholeRun, tmp_path: Path) -> None:
    here = run.elsewhere(tmp_path, {"kind": "local"})
    refused = here.prepare("plan", "demo:smollm2-135m", "--profile", run.profile)
    assert refused.returncode == 2
    assert b"3 nodes" in refused.stderr
    assert b"executor 'ray'" in refused.stderr


def test_a_run_to_the_end_though_a_node_is_killed(run: WholeRun, nodes: RayNodes) -> None:
    """One on which a part is: all parts end, and begin anew once there is another node."""
    seen: list[str] = []

    def kill() -> None:
        parts = guards_of_servers(run.place, OF_A_PART)
        guards = [*guards_of_servers(run.place), *parts]
        seen.extend(nodes.node_above(guard) for guard in guards)
        nodes.kill(nodes.node_above(parts[0]))
        wait_until(lambda: not any(Path(f"/proc/{guard}").exists() for guard in guards))
        nodes.add()

    # At the first answer: three nodes answer the rest in the seconds that a node takes to be gone.
    ended = run.disturb(lambda task, done: task == f"{RECIPE}: quiz" and done > 0, kill)
    assert len({*seen}) == COUNT
    assert any("lost" in note for note in ended.notes), ended
    check_promoted(run, ended)
    assert asked_twice(run.place) == []
    assert left_after(run.place) == []
    command = command_of_server(run)
    assert command[command.index(f"--{NODES}") + 1] == str(COUNT)
    folder = run.place / "runs" / ended.report["run"]
    for part in range(1, COUNT):
        log = next(iter(sorted(folder.glob(f"server.{RECIPE}.*node{part}.log"))))
        assert f"Worker_TP{part}" in log.read_text()


def command_of_server(run: WholeRun) -> list[str]:
    """As the variant's coherence has it."""
    for record in run.place.glob("stages/coherence/*/stage.json"):
        kept = json.loads(record.read_text())
        if kept["variant"] == RECIPE:
            return list(kept["result"]["server"]["command"])
    raise AssertionError("the variant was not asked")
