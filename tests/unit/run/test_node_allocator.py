"""Room on the node: who gets which GPUs, who waits for whom, and what is never given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import node_locks
from pipeline.core.errors import UsageError
from pipeline.core.resource_request import ResourceRequest
from pipeline.core.supervised_process import SupervisedProcess
from pipeline.run.executors import local, node_allocator
from pipeline.run.executors.local import LocalExecutor
from pipeline.run.executors.node_allocator import NodeAllocation, NodeAllocator

ONE, ALL, ALONE = ResourceRequest(), ResourceRequest(cpus="all"), ResourceRequest(exclusive=True)
# Another run's driver: takes room, tells which GPUs, and keeps it until it is killed.
DRIVER = """
import json, sys
from pipeline.core.resource_request import ResourceRequest
from pipeline.run.executors.node_allocator import NodeAllocator

room = NodeAllocator().find_room(ResourceRequest.model_validate_json(sys.argv[1]))
print(json.dumps(room and [gpu.uuid for gpu in room.gpus]), flush=True)
sys.stdin.read()
"""

Driver = Callable[..., None]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Makes an `nvidia-smi` that lists GPUs, and those on which a user computes."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(*listed: str, busy: tuple[str, ...] = ()) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(
            '#!/bin/sh\ncase "$*" in\n'
            f"-L) printf '%s\\n' {' '.join(repr(line) for line in listed)};;\n"
            f"*query-compute-apps=gpu_uuid*) printf '%s\\n' {' '.join(busy)};;\n"
            "*) exit 2;;\nesac\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


def h100s(number: int) -> list[str]:
    return [f"GPU {n}: NVIDIA H100 (UUID: GPU-{n})" for n in range(number)]


def take(node: NodeAllocator, needs: ResourceRequest) -> NodeAllocation:
    room = node.find_room(needs)
    assert room is not None, node.obstacle
    return room


def uuids(room: NodeAllocation) -> list[str]:
    return [gpu.uuid for gpu in room.gpus]


class TestCores:
    def test_small_work_runs_beside_work_on_all_cores_of_which_there_is_one(self) -> None:
        node = NodeAllocator()
        everything = take(node, ALL)
        small = [take(node, ONE) for _ in range(3)]
        assert node.find_room(ALL) is None
        assert "cores" in node.obstacle
        everything.release()
        take(node, ALL).release()
        for room in small:
            room.release()

    def test_whoever_measures_speed_has_the_node_alone(self) -> None:
        node = NodeAllocator()
        alone = take(node, ALONE)
        for needs in (ONE, ALL, ALONE):
            assert NodeAllocator().find_room(needs) is None
        alone.release()
        assert NodeAllocator().find_room(ONE) is None  # another measurement waits
        take(node, ALONE).release()
        with_room = take(node, ONE)
        assert node.find_room(ALONE) is None
        with_room.release()
        take(node, ALONE).release()

    def test_a_steady_flow_of_small_work_does_not_keep_it_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node, small = NodeAllocator(), take(NodeAllocator(), ONE)
        assert node.find_room(ALONE) is None
        assert NodeAllocator().find_room(ONE) is None  # though others have room like that
        small.release()
        take(node, ALONE).release()
        take(NodeAllocator(), ONE).release()
        # One that asks no more, as when it was killed, keeps nobody out.
        with_room = take(node, ONE)
        assert node.find_room(ALONE) is None
        monkeypatch.setattr(node_locks, "RESERVATION_S", 0.0)
        take(node, ONE).release()
        with_room.release()


class TestGpus:
    def test_each_goes_to_one(self, driver: Driver) -> None:
        driver(*h100s(3))
        node = NodeAllocator()
        rooms = [take(node, ResourceRequest(gpus=1)) for _ in range(3)]
        assert [uuids(room) for room in rooms] == [["GPU-0"], ["GPU-1"], ["GPU-2"]]
        assert rooms[1].variables() == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
        assert node.find_room(ResourceRequest(gpus=1)) is None
        assert "1 of this node's 3 GPUs" in node.obstacle
        rooms[1].release()
        assert uuids(take(NodeAllocator(), ResourceRequest(gpus=1))) == ["GPU-1"]

    def test_what_is_not_enough_is_not_kept(self, driver: Driver) -> None:
        driver(*h100s(2))
        node = NodeAllocator()
        first = take(node, ResourceRequest(gpus=1))
        assert node.find_room(ResourceRequest(gpus=2)) is None
        first.release()
        assert uuids(take(NodeAllocator(), ResourceRequest(gpus=2))) == ["GPU-0", "GPU-1"]

    def test_who_needs_several_comes_before_a_flow_of_those_who_need_one(
        self, driver: Driver
    ) -> None:
        driver(*h100s(2))
        node, small = NodeAllocator(), take(NodeAllocator(), ResourceRequest(gpus=1))
        assert node.find_room(ResourceRequest(gpus=2)) is None
        assert NodeAllocator().find_room(ResourceRequest(gpus=1)) is None
        take(NodeAllocator(), ONE).release()  # what needs no GPU goes on
        small.release()
        take(node, ResourceRequest(gpus=2)).release()
        take(NodeAllocator(), ResourceRequest(gpus=1)).release()

    @pytest.mark.parametrize(
        ("visible", "given"),
        [("1", ["GPU-1"]), ("GPU-2,0", ["GPU-2", "GPU-0"]), ("2,7,1", ["GPU-2"])],
    )
    def test_only_what_cuda_shows_is_given(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str, given: list[str]
    ) -> None:
        driver(*h100s(3))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        node = NodeAllocator()
        assert node.count_room(ResourceRequest(gpus=1)) == len(given)
        found = [gpu for _ in given for gpu in uuids(take(node, ResourceRequest(gpus=1)))]
        assert found == given

    def test_what_another_program_computes_on_is_not_given(self, driver: Driver) -> None:
        driver(*h100s(3), busy=("GPU-0", "GPU-2"))
        node = NodeAllocator()
        assert uuids(take(node, ResourceRequest(gpus=1))) == ["GPU-1"]
        assert node.find_room(ResourceRequest(gpus=1)) is None
        assert "use 2" in node.obstacle
        # As long as it does, who waits for two is no reason to keep the third from others.
        assert node.find_room(ResourceRequest(gpus=2)) is None
        assert not node_locks.NodeLocks().is_reserved("gpus")

    def test_another_kind_than_the_keys_name_is_not_given(self, driver: Driver) -> None:
        driver(*h100s(1), "GPU 1: NVIDIA L4 (UUID: GPU-l4)", "GPU 2: NVIDIA H100 (UUID: GPU-2)")
        assert uuids(take(NodeAllocator(), ResourceRequest(gpus=2))) == ["GPU-0", "GPU-2"]

    def test_each_slice_counts_as_one_and_work_can_have_no_more(self, driver: Driver) -> None:
        slices = [f"  MIG 3g.40gb     Device  {n}: (UUID: MIG-{n})" for n in range(2)]
        driver("GPU 0: NVIDIA H100 (UUID: GPU-0)", *slices)
        node = NodeAllocator()
        assert node.count_room(ResourceRequest(gpus=1)) == 2
        assert uuids(take(node, ResourceRequest(gpus=1))) == ["MIG-0"]
        assert uuids(take(node, ResourceRequest(gpus=1))) == ["MIG-1"]
        with pytest.raises(UsageError, match="2 slices"):
            node.find_room(ResourceRequest(gpus=2))

    def test_more_than_there_are_is_refused_at_once(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver(*h100s(8))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        for needs in (ResourceRequest(gpus=4), ResourceRequest(gpus=4, exclusive=True)):
            with pytest.raises(UsageError, match="4 GPUs") as caught:
                NodeAllocator().find_room(needs)
            assert caught.value.where == "CUDA_VISIBLE_DEVICES=3"

    def test_how_much_fits_side_by_side(self, driver: Driver) -> None:
        driver(*h100s(8))
        node = NodeAllocator()
        counted = [node.count_room(ResourceRequest(gpus=n)) for n in (1, 2, 3, 8, 9)]
        assert counted == [8, 4, 2, 1, 0]
        assert node.count_room(ResourceRequest(gpus=1, cpus="all")) == 1
        assert node.count_room(ALONE) == 1
        assert node.count_room(ONE) == len(os.sched_getaffinity(0))

    def test_one_runs_work_shares_the_memory(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver(*h100s(4))
        monkeypatch.setattr(node_allocator, "memory_bytes", lambda: 100)
        node, large = NodeAllocator(), ResourceRequest(gpus=1, memory_bytes=60)
        assert node.count_room(large) == 1
        first = take(node, large)
        assert node.find_room(large) is None
        assert "memory" in node.obstacle
        small = take(node, ResourceRequest(gpus=1, memory_bytes=40))
        others = take(node, ResourceRequest(gpus=1))
        first.release()
        first.release()
        take(node, large).release()
        small.release()
        others.release()
        # An estimate: what is alone may try.
        take(node, ResourceRequest(gpus=1, memory_bytes=1000)).release()

    def test_two_drivers_and_one_is_killed(self, driver: Driver) -> None:
        driver(*h100s(2))
        needs = ResourceRequest(gpus=1, cpus="all").model_dump_json()
        with subprocess.Popen(
            [sys.executable, "-c", DRIVER, needs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other:
            assert other.stdout is not None
            assert json.loads(other.stdout.readline()) == ["GPU-0"]
            node = NodeAllocator()
            assert node.find_room(ResourceRequest(cpus="all")) is None
            assert uuids(take(node, ResourceRequest(gpus=1))) == ["GPU-1"]
            other.kill()
            other.wait()
        assert uuids(take(node, ResourceRequest(gpus=1, cpus="all"))) == ["GPU-0"]


def test_what_a_killed_drivers_work_uses_stays_taken_until_it_has_ended(tmp_path: Path) -> None:
    """A driver's locks go with it; those of its work's guard stay while that ends the work."""
    node = NodeAllocator()
    room = take(node, ALL)
    slow = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "
    work = SupervisedProcess(
        [sys.executable, "-c", f"{slow}time.sleep(60)"],
        environment={},
        output=subprocess.PIPE,
        held_descriptors=room.descriptors,
        grace_seconds=0.5,
    )
    assert work.output.readline() == b"1\n"
    room.release()
    assert node.find_room(ALL) is None
    work.stop()
    take(node, ALL).release()


def test_work_sees_the_gpus_that_it_was_given(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(*h100s(2))
    seen: dict[str, str] = {}

    def start(task: Path, log: Path, variables: dict[str, str], held: Any) -> None:
        seen.update(variables)

    monkeypatch.setattr(local, "start", start)
    executor = LocalExecutor()
    others = executor.find_room(ResourceRequest(gpus=1))
    place = executor.find_room(ResourceRequest(gpus=1))
    assert others is not None
    assert place is not None
    place.submit(tmp_path / "task.json", tmp_path / "log")
    assert seen["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    place.release()
    others.release()
