"""The engines that serve; a new one is a module here and its line in the list.

They lie below all who ask: a profile's shape, the environments, the model card and the servers.
"""

from __future__ import annotations

from recipes.engines.engine import (
    AcceptanceRule,
    ApiCapabilities,
    DraftMethod,
    Engine,
    EngineCliOptions,
    LaunchSpec,
    options,
)
from recipes.engines.vllm import Vllm

__all__ = [
    "DEFAULT",
    "AcceptanceRule",
    "ApiCapabilities",
    "DraftMethod",
    "Engine",
    "EngineCliOptions",
    "LaunchSpec",
    "find_engine",
    "options",
]

ENGINES: list[Engine] = [
    Vllm(),
]
# The engine of a profile that names none.
DEFAULT = ENGINES[0].name


def find_engine(name: str) -> Engine:
    """The engine of that name; raises ValueError, which names those there are, without one."""
    for engine in ENGINES:
        if engine.name == name:
            return engine
    known = ", ".join(engine.name for engine in ENGINES)
    raise ValueError(f"there is no engine {ascii(name)[:80]}; there are: {known}")
