"""An engine: vLLM under another name, with an argument that its server does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from recipes.engines import LaunchSpec
from recipes.engines.vllm import Vllm


class OutsideEngine(Vllm):
    """The engine `outside`."""

    name = "outside"
    title = "Outside"
    homepage = "https://example.org/outside"

    def command(self, python: str, launch: LaunchSpec) -> list[str]:
        return super().command(python, replace(launch, arguments=translated(launch.arguments)))

    def parse_command(self, python: str, servers: Sequence[Mapping[str, Any]]) -> list[str]:
        return super().parse_command(python, [translated(each) for each in servers])


def translated(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return vLLM's arguments: `slots` is its `max-num-seqs`."""
    return {"max-num-seqs" if key == "slots" else key: each for key, each in arguments.items()}
