"""How much of a cluster's node a piece of work takes, and on which kind of node."""

from __future__ import annotations

import pytest

from pipeline.core.resource_request import ResourceRequest
from pipeline.run.executors.ray import resources_of
from pipeline.run.executors.resources import (
    Resources,
    count_room,
    most_frequent,
    words_of,
)
from pipeline.run.executors.slurm import SlurmOptions

GIB = 2**30
H100 = Resources(64, 8, "H100", 700.0 * GIB)
L4 = Resources(16, 1, "L4", 100.0 * GIB)


def test_nodes_of_one_kind_differ_a_little_in_memory() -> None:
    other = Resources(64, 8, "H100", 699.5 * GIB)
    assert most_frequent([L4, H100, other], ResourceRequest(gpus=1)) == H100
    assert most_frequent([L4, L4, H100], ResourceRequest(gpus=2)) == H100


def test_the_kind_of_gpu_matters_to_who_uses_one() -> None:
    assert H100.taken_by(ResourceRequest(gpus=2)).gpu_kind == "H100"
    assert H100.taken_by(ResourceRequest()).gpu_kind == ""
    assert H100.taken_by(ResourceRequest(gpus=1, exclusive=True)) == H100


def test_memory_limits_what_fits_side_by_side() -> None:
    asked = [ResourceRequest(gpus=1, memory_bytes=size * GIB) for size in (0, 80, 300, 900)]
    assert [count_room([H100], needs) for needs in asked] == [8, 8, 2, 1]
    # If an estimate exceeds what a node gives away, all that it gives is taken.
    assert H100.taken_by(asked[-1]).memory_bytes == 700 * GIB
    # The next node of the kind may have a little less, and it is to be taken whole, too.
    assert H100.taken_by(ResourceRequest(exclusive=True)).memory_bytes == 0


def test_as_text() -> None:
    assert words_of(ResourceRequest(gpus=1, memory_bytes=10**9)) == "1 GPU and 1.0 GB of memory"
    assert words_of(ResourceRequest(gpus=2, exclusive=True)) == "a separate node with 2 GPUs"


def test_what_ray_lists_of_a_node() -> None:
    has = {"CPU": 4.0, "GPU": 2.0, "memory": 5.0, "accelerator_type:H100": 1.0, "node:x": 1.0}
    found = resources_of(has)
    assert (found, found.memory_bytes) == (Resources(4, 2, "H100"), 5)
    assert resources_of({"memory": 1.0}) == Resources(0, 0)


@pytest.mark.parametrize(
    ("needs", "flags"),
    [
        (ResourceRequest(gpus=1), []),
        (ResourceRequest(gpus=1, memory_bytes=3 * GIB + 1), ["--mem=3073M"]),
        (ResourceRequest(cpus="all", memory_bytes=3 * GIB), ["--mem=0"]),
        (ResourceRequest(gpus=2, exclusive=True), ["--mem=0"]),
    ],
)
def test_memory_that_slurm_is_asked_for(needs: ResourceRequest, flags: list[str]) -> None:
    asked = SlurmOptions().flags_for(needs)
    assert [flag for flag in asked if flag.startswith("--mem")] == flags
