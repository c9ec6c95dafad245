"""Connects this process to a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager

from pipeline.core.errors import UsageError

CONNECT_TIMEOUT_S = 5.0


def connect(address: str) -> None:
    """Connect this process to the cluster, unless it is connected.

    Raises:
        UsageError: ray is missing, or there is no cluster.
    """
    where = f"executor ray, address {address}"
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            "the executor 'ray' needs the package ray",
            where=where,
            hint="in the clone of prepare: pip install '.[ray]'",
        ) from error
    if ray.is_initialized():
        return
    hint = "start one (`ray start --head`), or name its head: executor: {kind: ray, address: ...}"
    named = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    try:
        if named != "auto":
            _reach(named)  # Ray itself would wait forever
        # Ray has all workers import from the folder that we are in, which may be a user's model.
        with _own_signals(), chdir("/"):
            ray.init(address=named, log_to_driver=False, logging_level=logging.ERROR)
        _keep_standard_output()
    except (ConnectionError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"there is no Ray cluster: {reason}", where=where, hint=hint) from error


def _reach(address: str) -> None:
    """Connect once; raises OSError where nothing listens, ValueError for no address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{address!r} is not HOST:PORT")
    with socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S):
        pass


def _keep_standard_output() -> None:
    """Have Ray not print there what a dying node had logged: it is for results.

    Even with log_to_driver=False a thread of Ray's (2.60) prints it, which asks no setting.
    """
    from ray._private import worker

    worker.print_to_stdstream = lambda *_, **__: None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what our process does at a signal; Ray would have it end with another exit code."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, action in kept.items():
            signal.signal(number, action)
