"""An engine: this package's own server (`server.py`) in an environment of this package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.engines import ApiCapabilities, Engine, LaunchSpec, options

SERVER = str(Path(__file__).with_name("server.py"))
VERSION = "import transformers; print('engine-version', transformers.__version__)"


class OutsideEngine(Engine):
    """The engine `outside`."""

    # As in pyproject.toml: [project.entry-points."prepare.engines"].
    name = "outside"
    title = "Outside"
    homepage = "https://example.org/outside"
    environment = "outside-serve"
    accelerators = ("cpu",)
    key_variable = "OUTSIDE_API_KEY"
    dialect = ApiCapabilities()  # it has neither of vLLM's requests
    # By the reason that no profile may set them.
    ours: Mapping[str, tuple[str, ...]] = {
        "it decides what the server loads, and who may reach it": ("model", "socket", "port"),
    }

    def command(self, python: str, launch: LaunchSpec) -> list[str]:
        place = ["--socket", launch.socket] if launch.socket else ["--port", str(launch.port)]
        return [python, "-P", SERVER, "--model", launch.model, *place, *options(launch.arguments)]

    def public_command(self, accelerator: str, launch: LaunchSpec) -> list[str]:
        program = ("python", "-m", "outside_package.server")
        return [*program, "--model", launch.model, "--port", "8000", *options(launch.arguments)]

    def package(self, accelerator: str) -> str:
        return "outside-package"

    def parse_command(self, python: str, servers: Sequence[Mapping[str, Any]]) -> list[str]:
        words = (json.dumps([*options(arguments)]) for arguments in servers)
        return [python, "-P", SERVER, "--check", *words]

    def model_in(self, listing: Any) -> str:
        return str(listing["data"][0]["root"])

    def version_command(self, python: str) -> list[str]:
        return [python, "-c", VERSION]
