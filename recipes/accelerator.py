"""Devices of the heavy computations."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field


class Accelerator(StrEnum):
    """A device of the heavy computations."""

    CPU = "cpu"
    CUDA = "cuda"


NamedAccelerator = Annotated[Accelerator, Field(strict=False)]
"""As configuration files have it, by its name."""
