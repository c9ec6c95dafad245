"""All that a second engine is: this module, and its line in the list of engines."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from recipes.engines import Engine, LaunchSpec, options

VERSION = "0.7"


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
        return [python, launch.model, *options(launch.arguments)]

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
