from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prepare.errors import UsageError
from prepare.gpus import VisibleGpu
from prepare.lots import CORES, NOTHING, Needs, Node, lock_folder

GPUS = [VisibleGpu(f"NVIDIA {n}", f"GPU-{n}") for n in range(4)]
HOLD = """
import sys
from pathlib import Path
from prepare.file_locks import doing
from prepare import lots
from prepare.gpus import VisibleGpu
from prepare.lots import Needs, Node
needs = Needs(cores=sys.argv[2] == "cores", gpus=int(sys.argv[2] == "gpu"))
node = Node(Path(sys.argv[1]))
node.gpus = [VisibleGpu("NVIDIA 0", "GPU-0")]
lots.busy_gpus = lambda: set()
def waits(who):
    print("waits for", who, flush=True)
with doing("run 7"), doing("serves fp8"), node.take(needs, waits) as lot:
    def hold():
        print("held", flush=True)
        sys.stdin.read()
    if sys.argv[2] == "quiet":
        with lot.quiet(waits):
            hold()
    else:
        hold()
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    made.gpus = list(GPUS)
    monkeypatch.setattr("prepare.lots.busy_gpus", lambda: {"GPU-3"})
    return made


@contextmanager
def other(node: Node, how: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(node.folder), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_cores_are_one_s_at_a_time_and_who_waits_is_told_for_whom(node: Node) -> None:
    told: list[str] = []
    with other(node, "cores") as process:
        assert says(process) == "held"
        with node.take(Needs(cores=True), on_wait=told.append, wait=False) as lot:
            assert lot is None
        with node.take(NOTHING, wait=False) as lot:
            assert lot is not None
    words = (
        rf"run 7 since \d\d:\d\d UTC, serves fp8 since \d\d:\d\d UTC, process {process.pid} of .+"
    )
    assert re.fullmatch(words, told[0])
    with node.take(Needs(cores=True), wait=False) as lot:
        assert lot is not None
    assert list(node.folder.glob(f"prepare.holder.{os.getpid()}")) == []


def test_a_lock_whose_holder_said_nothing_names_the_process(node: Node) -> None:
    with other(node, "cores") as process:
        assert says(process) == "held"
        note = node.folder / f"prepare.holder.{process.pid}"
        note.write_text("\x1b[2J")
        assert node.holder(CORES).startswith(f"process {process.pid} of ")
        note.unlink()
        assert node.holder(CORES).startswith(f"process {process.pid} of ")
        os.mkfifo(note)  # by anyone: it blocks readers
        assert node.holder(CORES).startswith(f"process {process.pid} of ")


def test_a_measurement_waits_for_work_and_keeps_newcomers_out(node: Node) -> None:
    with node.take(NOTHING) as mine, other(node, "quiet") as process:
        assert mine is not None
        assert says(process).startswith("waits for other work to end, as speed is measured")
        with node.take(NOTHING, wait=False) as newcomer:
            assert newcomer is None
    with other(node, "quiet") as process:
        assert says(process) == "held"
        with node.take(NOTHING, wait=False) as newcomer:
            assert newcomer is None
    with node.take(NOTHING, wait=False) as newcomer:
        assert newcomer is not None


def test_servers_of_ours_do_not_stand_in_the_way_of_our_quiet(node: Node) -> None:
    with node.take(NOTHING) as lot:
        assert lot is not None
        copy = os.dup(lot.share)  # as a server's supervisor has it
        with lot.quiet(), other(node, "cores") as process:
            time.sleep(0.3)
            assert process.poll() is None
        os.close(copy)


def test_work_that_waits_for_our_gpu_does_not_stand_in_the_way_of_our_quiet(node: Node) -> None:
    """With `quiet: node` each waited for the other."""
    node.gpus = GPUS[:1]
    with node.take(Needs(gpus=1)) as lot, other(node, "gpu") as process:
        assert lot is not None
        assert says(process).startswith("waits for 1 GPUs, 0 are free")

        def measure() -> None:
            with lot.quiet():
                pass

        measuring = threading.Thread(target=measure, daemon=True)
        measuring.start()
        measuring.join(10)
        assert not measuring.is_alive()


@pytest.mark.parametrize(
    ("needs", "covered"),
    [(NOTHING, True), (Needs(gpus=1), True), (Needs(gpus=3), False), (Needs(cores=True), False)],
)
def test_a_lot_is_enough_for_as_much_and_less(node: Node, needs: Needs, covered: bool) -> None:
    with node.take(Needs(gpus=2)) as lot:
        assert lot is not None
        assert lot.covers(needs) == covered


def test_gpus_that_others_use_are_left_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    with node.take(Needs(gpus=2)) as first, node.take(Needs(gpus=1)) as second:
        assert first is not None
        assert second is not None
        assert [gpu.uuid for gpu in first.gpus] == ["GPU-0", "GPU-1"]
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-2"
        told: list[str] = []
        with node.take(Needs(gpus=1), on_wait=told.append, wait=False) as third:
            assert third is None
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    with node.take(Needs(gpus=3), wait=False) as lot:
        assert lot is not None


def test_more_than_there_are_is_refused(node: Node) -> None:
    with pytest.raises(UsageError, match="5 GPUs are needed"), node.take(Needs(gpus=5)):
        pass
    assert [node.count_lots(Needs(gpus=count)) for count in (1, 2, 4)] == [4, 2, 1]
    node.gpus = [VisibleGpu("MIG", f"MIG-{n}", is_slice=True) for n in range(2)]
    assert [node.count_lots(Needs(gpus=count)) for count in (1, 2)] == [2, 0]


def test_a_link_is_no_lock(node: Node) -> None:
    (node.folder / "prepare.cores.lock").symlink_to(node.folder / "other")
    with pytest.raises(UsageError, match="cannot be used"), node.take(Needs(cores=True)):
        pass


def test_the_folder_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREPARE_NODE_LOCKS", str(tmp_path))
    assert lock_folder() == tmp_path
    monkeypatch.setenv("PREPARE_NODE_LOCKS", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="not a writable directory"):
        lock_folder()
