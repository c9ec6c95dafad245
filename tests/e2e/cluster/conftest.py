"""Real schedulers on this machine, one of each for a module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ray_nodes import RayNodes
from slurm_nodes import SlurmNodes, missing


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNodes]:
    """A Slurm of two idle nodes."""
    if reason := missing():
        pytest.fail(reason)
    made = SlurmNodes(tmp_path_factory.mktemp("slurm"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[RayNodes]:
    """A Ray of two idle nodes."""
    made = RayNodes(2)
    try:
        yield made
    finally:
        made.end_processes()
