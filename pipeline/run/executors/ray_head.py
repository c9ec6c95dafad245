"""A Ray cluster's head, without which Ray ends drivers after a minute, in words of its own."""

from __future__ import annotations

import socket
import time

from pipeline.core.errors import StageError

SECONDS_TO_REACH = 5.0
SECONDS_TO_COME_BACK = 30.0  # a head with a store of its own may be started again


class RayHead:
    """Asked before what Ray would wait for, so that a run ends while it still can.

    Args:
        address: HOST:PORT.
        patience: seconds that it may be away.
    """

    def __init__(self, address: str, patience: float = SECONDS_TO_COME_BACK) -> None:
        self.address = address
        self._patience = patience
        self._is_gone = False

    def knock(self) -> None:
        """Connect once; raises OSError where nobody answers, ValueError for no address."""
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"{self.address!r} is not HOST:PORT")
        with socket.create_connection((host, int(port)), SECONDS_TO_REACH):
            pass

    def check(self) -> None:
        """Wait until it answers, for as long as it may be away.

        Raises:
            StageError: it does not, now or at an earlier look.
        """
        until = time.monotonic() + self._patience
        while not self._is_gone:
            try:
                return self.knock()
            except OSError:
                self._is_gone = time.monotonic() > until
            time.sleep(min(1.0, self._patience))
        raise StageError(
            f"the head of the Ray cluster has not answered for {self._patience:.0f} seconds",
            where=f"executor ray, address {self.address}",
            cure="start the cluster again; the same command continues where this one stopped",
        )
