"""Serving engines, one module per entry point."""

from __future__ import annotations

from functools import cache

from prepare.plugins import ENGINES, load_class
from recipes.engines.engine import (
    KERNELS,
    AcceptanceRule,
    ApiCapabilities,
    DraftMethod,
    Engine,
    LaunchSpec,
    options,
)
from recipes.engines.vllm import Vllm

__all__ = [
    "DEFAULT",
    "KERNELS",
    "AcceptanceRule",
    "ApiCapabilities",
    "DraftMethod",
    "Engine",
    "LaunchSpec",
    "find_engine",
    "options",
]

# Engine of a profile without the key.
DEFAULT = Vllm.name


@cache
def find_engine(name: str) -> Engine:
    """Return the engine in the entry point group `prepare.engines`.

    Raises ValueError with the known ones, UsageError if it cannot be loaded.
    """
    try:
        kind: type[Engine] = load_class(ENGINES, name, Engine)
    except LookupError as error:
        raise ValueError(f"the engine {error}") from None
    return kind()
