"""A model server that programs outside of a run reach by a port, as behind `prepare serve`."""

from __future__ import annotations

from contextlib import ExitStack

from pipeline.core.events import Progress
from pipeline.serving.front import open_front, reserve
from pipeline.serving.server import Server


class PortServer(Server):
    """A server with a front on a free port of the loopback, without a key."""

    url = ""

    def start(self, timeout_seconds: float, progress: Progress) -> float:
        seconds = super().start(timeout_seconds, progress)
        self.front = ExitStack()
        bound = self.front.enter_context(reserve("127.0.0.1", 0))
        self.front.enter_context(open_front(bound, self.socket, "", "/health"))
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        return seconds

    def stop(self) -> None:
        if self.url:
            self.front.close()
        super().stop()
