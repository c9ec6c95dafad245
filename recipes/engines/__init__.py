"""The engines that serve; each is a module, found by its entry point.

They lie below all who ask: a profile's shape, the environments, the model card and the servers.
"""

from __future__ import annotations

from functools import cache

from pipeline.core.plugins import ENGINES, load_class
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

# The engine of a profile that names none.
DEFAULT = Vllm.name


@cache
def find_engine(name: str) -> Engine:
    """The engine that a package declares in the group `prepare.engines`.

    Raises:
        ValueError: there is none of that name; the message lists those there are.
        UsageError: it cannot be loaded.
    """
    try:
        found: type[Engine] = load_class(ENGINES, name, Engine)
    except LookupError as error:
        raise ValueError(f"the engine {error}") from None
    return found()
