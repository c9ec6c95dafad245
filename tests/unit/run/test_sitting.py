"""What a sitting sees to before a server starts, on whatever node it is held."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_run import FakeRun

from pipeline.core.errors import ServingError
from pipeline.core.hardware import hardware
from pipeline.environments.definition import Accelerator
from pipeline.run.sitting import Sitting, check_hardware, hold


def sitting(run: FakeRun) -> Sitting:
    """The baseline's first one."""
    plan = run.plan()
    return Sitting(
        stage="sitting",
        store=str(run.root),
        accelerator=Accelerator.CPU,
        folder=str(run.root),
        model=plan.baseline.to_serve,
        baseline=plan.baseline.to_serve,
        specs=plan.served_stages(plan.baseline, lambda _: None),
    )


def test_a_node_that_the_verdict_would_not_be_about_serves_nothing(tmp_path: Path) -> None:
    """Its evidence would name the driver's machine."""
    of_another = FakeRun(tmp_path / "store")
    with pytest.raises(ServingError) as caught:
        hold(sitting(of_another), sys.stderr.fileno())
    assert "AMD EPYC" in caught.value.what
    assert "cpu" in caught.value.what
    assert not list(tmp_path.rglob("server.*"))


def test_a_node_of_the_same_kind_serves(tmp_path: Path) -> None:
    of_here = FakeRun(tmp_path / "store", hardware=hardware("cpu").model_dump())
    check_hardware(sitting(of_here), of_here.store)


def test_it_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    written = sitting(FakeRun(tmp_path / "store"))
    assert Sitting.model_validate_json(written.model_dump_json()) == written
