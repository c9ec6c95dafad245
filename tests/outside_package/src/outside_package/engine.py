"""An engine: how its server is started, and what it answers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from recipes.engines import Engine, LaunchSpec, options


class OutsideEngine(Engine):
    """The engine `outside`."""

    name = "outside"
    title = "Outside"
    homepage = "https://example.org/outside"
    environment = "serve"
    modules = ()
    key_variable = "OUTSIDE_KEY"

    def command(self, python: str, launch: LaunchSpec) -> list[str]:
        where = ["--uds", launch.socket] if launch.socket else ["--port", str(launch.port)]
        return [python, "-m", "outside_server", launch.model, *where, *options(launch.arguments)]

    def public_command(self, accelerator: str, launch: LaunchSpec) -> list[str]:
        return ["outside-server", launch.model, *options(launch.arguments)]

    def package(self, accelerator: str) -> str:
        return "outside-server"

    def known_arguments(self, accelerator: str) -> tuple[str, Collection[str]]:
        return "outside 1", ("slots",)

    def model_in(self, listing: Any) -> str:
        return str(listing["data"][0]["root"])

    def version_command(self, python: str) -> list[str]:
        return [python, "-c", "print('engine-version 1')"]
