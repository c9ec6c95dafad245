"""All that a second engine is: this module, and its line in the list of engines."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tiny_server import VERSION

from recipes.engines import Engine, LaunchSpec, options

SERVER = Path(__file__).with_name("tiny_server.py")


class Tiny(Engine):
    name = "tiny"
    title = "Tiny"
    homepage = "https://example.org/tiny"
    environment = "evaluate"
    modules = ()
    key_variable = "TINY_SECRET"
    health = "/ready"
    hints = ((r"slots exhausted", "give it a slot"),)
    facts = {"slots": r"tiny: (\d+) slots"}  # noqa: RUF012
    ours = {"it decides who may reach the server": ("listen",)}  # noqa: RUF012
    tuning = "TINY_.*"
    reaching = "TINY_SECRET"

    def command(self, python: str, launch: LaunchSpec) -> list[str]:
        place = f"unix:{launch.socket}" if launch.socket else f"port:{launch.port}"
        arguments = dict(launch.arguments)
        cache = str(arguments.pop("kv-cache-dtype"))
        return [
            *(python, "-I", str(SERVER), "--weights", launch.model, "--alias", launch.name),
            *("--listen", place, "--cache", cache, *options(arguments)),
        ]

    def public_command(self, accelerator: str, launch: LaunchSpec) -> list[str]:
        return ["tiny", launch.model, *options(launch.arguments)]

    def package(self, accelerator: str) -> str:
        return "tiny"

    def known_arguments(self, accelerator: str) -> tuple[str, Collection[str]]:
        return f"tiny {VERSION}", ("listen", "slots")

    def model_in(self, listing: Any) -> str:
        return str(listing["models"][0]["path"])

    def version_command(self, python: str) -> list[str]:
        return [python, "-c", f"print('hello'); print('engine-version', '{VERSION}')"]
