"""Servers of a run: each up from the first question to the context's end, two where need be."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from listener import Listener
from model_server_stand_in import stand_in_python

from artifacts.serving_arguments import ServingArguments
from pipeline.core.errors import ServingError
from pipeline.plan.plan import VariantPlan
from pipeline.run import endpoints
from pipeline.run.endpoints import LocalServers
from recipes.catalog import load_profile, load_recipe
from recipes.schema import Recipe


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalServers:
    log = SimpleNamespace(folder=tmp_path, stage=lambda _: None)
    python = stand_in_python(tmp_path)
    monkeypatch.setattr(endpoints, "engine_version", lambda engine, python: "0.33.0")
    stages: Any = SimpleNamespace(python_of=lambda _: python, log=log, progress=Listener())
    return LocalServers(stages, tmp_path / "lock" / "server.lock", 20)


def variant(tmp_path: Path, name: str, stand_in: str = "answers") -> VariantPlan:
    recipe: Recipe = load_recipe("fp8-dynamic").model_copy(update={"name": name})
    arguments = ServingArguments.of(load_profile("cpu"), is_baseline=False)
    arguments.environment.update({"STAND_IN": stand_in})
    return VariantPlan(recipe, tmp_path, arguments, {}, (), {})


def ask(facts: dict[str, Any]) -> int:
    transport = httpx.HTTPTransport(uds=facts["socket"])
    with httpx.Client(transport=transport, base_url=facts["url"]) as client:
        return client.get("/health").status_code


def test_both_sides_are_up_at_once_and_gone_at_the_end(
    servers: LocalServers, tmp_path: Path
) -> None:
    sides = [variant(tmp_path, name) for name in ("baseline", "fp8")]
    with servers.hold_machine():
        facts = [servers.open_variant(side) for side in sides]
        assert [ask(each) for each in facts] == [200, 200]
        assert facts[0]["socket"] != facts[1]["socket"]
        assert servers.open_variant(sides[0]) is facts[0]
        servers.check_alive()
    for each in facts:
        assert not Path(each["socket"]).parent.exists()
    with servers.hold_machine():
        assert servers.open_variant(sides[0])["server_log"].endswith("server.baseline.2.log")


def test_a_side_that_died_is_noticed_while_the_other_lives(
    servers: LocalServers, tmp_path: Path
) -> None:
    with servers.hold_machine():
        facts = [servers.open_variant(variant(tmp_path, name)) for name in ("baseline", "fp8")]
        transport = httpx.HTTPTransport(uds=facts[0]["socket"])
        with httpx.Client(transport=transport) as client, pytest.raises(httpx.HTTPError):
            client.post("http://localhost/die")
        deadline = time.monotonic() + 20
        while (died := dead(servers)) is None and time.monotonic() < deadline:
            assert ask(facts[1]) == 200
        assert "exit code 9" in str(died)
        # It is no longer open, so whoever needs it starts another.
        assert dead(servers) is None
        assert servers.open_variant(variant(tmp_path, "baseline")) is not facts[0]


def test_within_a_run_that_compares_speeds_the_baseline_stays_up(
    servers: LocalServers, tmp_path: Path
) -> None:
    baseline, fp8 = (variant(tmp_path, name) for name in ("baseline", "fp8"))
    with servers.hold_machine():
        with servers.hold_machine():
            facts = [servers.open_variant(each) for each in (baseline, fp8)]
        assert ask(facts[0]) == 200
        assert not Path(facts[1]["socket"]).parent.exists()
        with servers.hold_machine():
            assert servers.open_variant(baseline) is facts[0]
    assert not Path(facts[0]["socket"]).parent.exists()


def dead(servers: LocalServers) -> ServingError | None:
    try:
        servers.check_alive()
    except ServingError as error:
        return error
    return None
