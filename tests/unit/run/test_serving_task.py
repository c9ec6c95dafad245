"""What a serving task sees to before a server starts, on any node."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_run import IDENTITIES, FakeRun
from some_node import NODE

from pipeline.core.errors import EnvironmentBuildError, ServingError
from pipeline.core.events import EventWriter
from pipeline.core.hardware import hardware, this_node
from pipeline.environments.definition import Accelerator
from pipeline.environments.environment import identity
from pipeline.environments.settings import Settings
from pipeline.plan.speed_plan import Sides, SpeedSide, find_claims, speed_stages
from pipeline.run.serving_task import ServingTask
from pipeline.run.serving_task_runner import check_engines, check_hardware, run_serving_task
from pipeline.stages.screen import SCREEN
from recipes.catalog import load_policy, load_profile


def serving_task(run: FakeRun) -> ServingTask:
    """The baseline's first one."""
    plan = run.plan()
    return ServingTask(
        stage="serving_task",
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
        run_serving_task(
            serving_task(of_another), of_another.store, EventWriter(sys.stderr.fileno())
        )
    assert NODE.cpu in caught.value.message
    assert "cpu" in caught.value.message
    assert not list(tmp_path.rglob("server.*"))


def test_a_node_of_the_same_kind_serves(tmp_path: Path) -> None:
    of_here = FakeRun(tmp_path / "store", hardware=hardware("cpu").model_dump())
    check_hardware(serving_task(of_here), of_here.store)


def test_a_node_whose_settings_name_another_engine_serves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key and the evidence would name the driver's."""
    settings = Settings(home=tmp_path / "home", store=tmp_path / "store")
    engine = identity("serve", Accelerator.CPU, settings)
    here = FakeRun(
        tmp_path / "store",
        hardware=hardware("cpu").model_dump(),
        identities={**IDENTITIES, "serve": engine},
    )
    check_engines(serving_task(here), here.store, settings)
    own = tmp_path / "settings.yaml"
    own.write_text(f"environments: {{serve: {{python: {sys.executable}}}}}")
    monkeypatch.setenv("PREPARE_SETTINGS", str(own))
    with pytest.raises(EnvironmentBuildError, match="'serve'"):
        run_serving_task(serving_task(here), here.store, EventWriter(sys.stderr.fileno()))
    assert not list(tmp_path.rglob("server.*"))


@pytest.mark.parametrize(
    ("machine", "is_right"),
    [
        (this_node().machine, True),
        (this_node().kind("cpu"), True),
        ("another machine's id", False),
        ("AMD EPYC, 640 cores", False),
    ],
    ids=["this one", "its kind", "another one", "another kind"],
)
def test_speed_is_measured_on_what_it_will_be_kept_for(
    tmp_path: Path, machine: str, is_right: bool
) -> None:
    run = FakeRun(tmp_path / "store", hardware=hardware("cpu").model_dump())
    plan = run.plan()
    assert plan.trial is not None
    screen = plan.baseline.stages["screen"]
    side = SpeedSide("baseline", SCREEN.parameters_of(screen), screen)
    stages = speed_stages(
        Sides(side, side, tokenizer=tmp_path, environment="e", machine=machine),
        plan.trial,
        find_claims(load_policy("demo"), load_profile("cpu"), alpha=plan.trial.level),
    )
    loads = serving_task(run).model_copy(update={"specs": list(stages.values())})
    assert loads.specs
    if is_right:
        check_hardware(loads, run.store)
    else:
        with pytest.raises(ServingError) as caught:
            check_hardware(loads, run.store)
        assert machine in caught.value.message


def test_it_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    written = serving_task(FakeRun(tmp_path / "store"))
    assert ServingTask.model_validate_json(written.model_dump_json()) == written
