from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from listener import Listener
from model_server_stand_in import stand_in_python

from pipeline.run import servers as endpoints
from pipeline.run.servers import Servers
from pipeline.serving.served_model import ServedModel
from pipeline.serving.serving_arguments import ServingArguments
from pipeline.stages.starts import StartLedger
from prepare.errors import ServingError
from prepare.lots import NOTHING, Needs, Node
from prepare.store import Store
from recipes.catalog import load_profile


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    log = SimpleNamespace(folder=tmp_path, stage=lambda _: None, run_id="r")
    python = stand_in_python(tmp_path)
    monkeypatch.setattr(endpoints, "engine_version", lambda engine, python: "0.33.0")
    (tmp_path / "node-locks").mkdir()
    run: Any = SimpleNamespace(
        python_of=lambda _: python,
        caches_of=lambda _: {},
        log=log,
        progress=Listener(),
        store=Store(tmp_path / "store"),
        node=Node(tmp_path / "node-locks"),
        is_on_gpus=False,
        tell_of_waiting=lambda who: None,
    )
    with Servers(run) as made:
        yield made


def model(tmp_path: Path, name: str, stand_in: str = "answers", **changes: Any) -> Any:
    arguments = ServingArguments.of(load_profile("cpu"), is_baseline=False)
    arguments.environment.update({"STAND_IN": stand_in})
    identity = ServedModel(serving=arguments, endpoint=changes.get("endpoint"))
    return SimpleNamespace(
        recipe=SimpleNamespace(name=name),
        stages={"first_texts": SimpleNamespace(key=name)},
        is_ours=True,
        folder=tmp_path,
        identity=identity,
        ready_timeout_seconds=20,
        draft=None,
    )


def ask(facts: dict[str, Any]) -> int:
    transport = httpx.HTTPTransport(uds=facts["socket"])
    with httpx.Client(transport=transport, base_url=facts["url"]) as client:
        return client.get("/health").status_code


def test_both_sides_are_up_at_once_and_gone_at_the_end(servers: Servers, tmp_path: Path) -> None:
    sides = [model(tmp_path, name) for name in ("baseline", "fp8")]
    facts = [servers.open(side) for side in sides]
    assert [ask(each) for each in facts] == [200, 200]
    assert facts[0]["socket"] != facts[1]["socket"]
    assert servers.open(sides[0]) is facts[0]
    servers.check_alive(["baseline", "fp8"])
    servers.give_back()
    for each in facts:
        assert not Path(each["socket"]).parent.exists()
    assert servers.open(sides[0])["server_log"].endswith("server.baseline.2.log")


def test_a_side_that_died_is_noticed_while_the_other_lives(
    servers: Servers, tmp_path: Path
) -> None:
    facts = [servers.open(model(tmp_path, name)) for name in ("baseline", "fp8")]
    transport = httpx.HTTPTransport(uds=facts[0]["socket"])
    with httpx.Client(transport=transport) as client, pytest.raises(httpx.HTTPError):
        client.post("http://localhost/die")
    deadline = time.monotonic() + 20
    while (died := dead(servers)) is None and time.monotonic() < deadline:
        assert ask(facts[1]) == 200
    assert "exit code 9" in str(died)
    # It is no longer open, so the next user starts another.
    assert dead(servers) is None
    assert servers.open(model(tmp_path, "baseline")) is not facts[0]


def dead(servers: Servers) -> ServingError | None:
    try:
        servers.check_alive(["baseline", "fp8"])
    except ServingError as error:
        return error
    return None


def test_each_life_has_a_log_in_the_order_of_lives(servers: Servers, tmp_path: Path) -> None:
    """Other files there: logs of the server's parts on other nodes, and another variant's."""
    for other in ("fp8.node1.log", "fp8.node2.log", "fp8.2.node1.log", "fp8.kv.log"):
        (tmp_path / f"server.{other}").touch()
    logs = []
    for _ in range(3):
        logs.append(Path(servers.open(model(tmp_path, "fp8"))["server_log"]))
        servers.give_back()
    assert [log.name for log in logs] == ["server.fp8.log", "server.fp8.2.log", "server.fp8.3.log"]
    assert all(log.stat().st_mode & 0o077 == 0 for log in logs)


def test_servers_stay_up_on_their_lot_and_give_it_back_before_another_is_taken(
    servers: Servers, tmp_path: Path
) -> None:
    lot = servers.take(Needs(cores=True))
    assert lot is not None
    facts = servers.open(model(tmp_path, "baseline"))
    servers.open(model(tmp_path, "fp8"))
    servers.give_back_unused()
    assert servers.take(Needs(cores=True)) is lot
    assert servers.take(NOTHING) is lot
    other = Node(servers.run.node.folder)
    with other.take(Needs(cores=True), wait=False) as taken:
        assert taken is None
    servers.end_all_but(["baseline"])
    assert ask(facts) == 200
    servers.end_all_but([])
    with other.take(Needs(cores=True), wait=False) as taken:
        assert taken is not None


def test_a_server_that_died_unasked_is_counted_and_started_again(
    servers: Servers, tmp_path: Path
) -> None:
    facts = servers.open(model(tmp_path, "baseline"), "m")
    transport = httpx.HTTPTransport(uds=facts["socket"])
    with httpx.Client(transport=transport) as client, pytest.raises(httpx.HTTPError):
        client.post("http://localhost/die")
    deadline = time.monotonic() + 20
    while servers.are_up and time.monotonic() < deadline:
        servers.end_all_but(["baseline"])
    assert servers.open(model(tmp_path, "baseline"), "m")["socket"] != facts["socket"]
    count = StartLedger(servers.run.store, "baseline").count("m")
    assert (count.tried, count.failed) == (2, 1)
