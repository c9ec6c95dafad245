"""An engine: vLLM under another name, with an argument that its server does not have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from recipes.engines import LaunchSpec
from recipes.engines.vllm import Vllm


class OutsideEngine(Vllm):
    """The engine `outside`."""

    name = "outside"
    title = "Outside"
    homepage = "https://example.org/outside"

    def command(self, python: str, launch: LaunchSpec) -> list[str]:
        arguments = {key: value for key, value in launch.arguments.items() if key != "slots"}
        if "slots" in launch.arguments:
            arguments["max-num-seqs"] = launch.arguments["slots"]
        return super().command(python, replace(launch, arguments=arguments))

    def known_arguments(self, accelerator: str) -> tuple[str, Collection[str]]:
        version, names = super().known_arguments(accelerator)
        return f"outside over {version}", [*names, "slots"]
