"""Real servers and schedulers on this machine, one of each for a module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ray_nodes import RayNodes
from slurm_nodes import SlurmNodes, missing

from pipeline.run.executors.ray import RayExecutor, RayOptions


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNodes]:
    """A Slurm of two idle nodes."""
    if reason := missing():
        pytest.skip(reason)
    made = SlurmNodes(tmp_path_factory.mktemp("slurm"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def executor(nodes: RayNodes) -> RayExecutor:
    """One for a module, as a driver has one: it keeps for a moment what is given back."""
    return RayOptions(address=nodes.address).open()
