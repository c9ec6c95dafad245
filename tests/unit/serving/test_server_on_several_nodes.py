"""A server that is spread over several nodes: which one does what, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_server_stand_in import stand_in_python

from artifacts.serving_arguments import ServingArguments
from pipeline.core.errors import ServingError, UsageError
from pipeline.core.events import Silent
from pipeline.serving.server import Server
from recipes.engines import Launch, Part, find_engine

SPREAD = {"tensor-parallel-size": 16, "nnodes": 2}
VLLM = find_engine("vllm")


def server(folder: Path, part: Part | None, **environment: str) -> Server:
    return Server(
        stand_in_python(folder),
        folder,
        ServingArguments(dict(SPREAD), environment),
        folder / "server.log",
        part=part,
    )


def words_after(command: list[str], *names: str) -> list[str]:
    return [command[command.index(name) + 1] for name in names]


def test_one_node_answers_and_the_others_take_part() -> None:
    launch = {"model": "/m", "arguments": SPREAD, "name": "model", "host": "127.0.0.1"}
    first, second = (
        VLLM.command(
            "python", Launch(**launch, socket="/s", part=Part(node, "10.0.0.1", 5000, own))
        )
        for node, own in enumerate(("10.0.0.1", "10.0.0.7"))
    )
    for node, command in enumerate((first, second)):
        told = words_after(
            command, "--master-addr", "--master-port", "--node-rank", "--nnodes", "--model"
        )
        assert told == ["10.0.0.1", "5000", str(node), "2", "/m"]
    assert "--headless" in second
    assert not {"--uds", "--host", "--port"} & {*second}
    assert words_after(first, "--uds", "--host") == ["/s", "127.0.0.1"]
    assert "--headless" not in first


def test_one_node_alone_refuses(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        server(tmp_path, None)
    assert "nnodes" in caught.value.where


def test_the_first_is_told_where_it_is_reached(tmp_path: Path) -> None:
    served = server(tmp_path, Part(0, "10.0.0.7", 5000, "10.0.0.7"))
    try:
        served.start(20, Silent())
        with served.address.client(timeout_seconds=10) as client:
            facts = client.get("/facts").json()
    finally:
        served.stop()
    assert facts["environment"]["VLLM_HOST_IP"] == "10.0.0.7"
    assert words_after(facts["arguments"], "--node-rank") == ["0"]


def test_a_part_ends_with_the_reason_of_its_own_log(tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.write_text("torch.distributed.DistNetworkError: the first node does not answer")
    part = server(
        tmp_path, Part(1, "10.0.0.1", 5000, "10.0.0.7"), STAND_IN="dies", STAND_IN_LOG=str(said)
    )
    with pytest.raises(ServingError, match=r"part .* exit code 1.*does not answer"):
        part.attend()
