"""A model server that programs outside of a run reach by a port, as behind `prepare serve`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pipeline.environments.environment import ensure
from pipeline.environments.settings import load_settings
from pipeline.serving.front import open_front, reserve
from pipeline.serving.server import Server
from pipeline.serving.serving_arguments import ServingArguments
from prepare.events import NullProgress, Progress
from recipes.accelerator import Accelerator
from recipes.schema import ServingProfile


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


# In bf16 a prompt's neighbours in a batch would turn near-ties.
EXACT = {"max-model-len": 4096, "block-size": 32, "dtype": "float32"}


@contextmanager
def served(
    model: Path,
    profile: ServingProfile,
    log: Path,
    variables: dict[str, str] | None = None,
    changes: Mapping[str, Any] = EXACT,
    *,
    is_baseline: bool = True,
) -> Iterator[PortServer]:
    """A model that is served by the profile with these changes."""
    arguments = ServingArguments.of(profile, is_baseline=is_baseline)
    arguments.engine_arguments.update(changes)
    arguments.environment.update(variables or {})
    python = ensure("serve", Accelerator.CPU, load_settings(), NullProgress()).python
    server = PortServer(python, model, arguments, log)
    try:
        server.start(profile.ready_timeout_seconds, NullProgress())
        yield server
    finally:
        server.stop()
