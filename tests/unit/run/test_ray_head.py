"""A head is asked on a real socket."""

from __future__ import annotations

import socket
import time

import pytest

from pipeline.core.errors import StageError
from pipeline.run.executors.ray_head import RayHead


def test_a_head_that_is_away_for_a_while_is_waited_for_and_then_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        head = RayHead(f"{host}:{port}", patience=0.2)
        head.check()
    began = time.monotonic()
    with pytest.raises(StageError) as caught:
        head.check()
    assert time.monotonic() - began >= 0.2
    assert caught.value.where == f"executor ray, address {host}:{port}"
    with socket.create_server((host, port)), pytest.raises(StageError):
        head.check()  # its work was ended: a head that comes after that knows none of it


@pytest.mark.parametrize("address", ["", "head", "head:", ":6379", "head:ray"])
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        RayHead(address).knock()
