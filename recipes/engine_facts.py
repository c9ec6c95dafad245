"""Data about an engine's command line that its parser lacks."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

import recipes
from recipes.config_file import parse
from recipes.config_model import ConfigModel, Name

Lever = Literal[
    "batching",
    "prefix_caching",
    "kv_cache_dtype",
    "quantization",
    "memory",
    "parallelism",
    "speculation",
    "compilation",
    "kernels",
]
Option = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]


class EngineFacts(ConfigModel):
    """Options of an engine that were removed, are defaults, or have side effects."""

    name: Name
    summary: str
    versions: dict[Literal["cpu", "cuda"], str] = Field(
        description="engine version that this data describes"
    )
    resolved: dict[Literal["cpu", "cuda"], dict[Option, str]] = Field(
        description="defaults that the engine chooses when it starts"
    )
    parameters: dict[Lever, str] = Field(description="default of each parameter")
    removed_options: dict[Option, str] = Field(description="former options, and their replacements")
    no_effect: dict[Option, str] = Field(description="options that are accepted but have no effect")
    slows_down: dict[str, str] = Field(description="`option=value` that costs speed, and why")
    changes_outputs: list[Option] = Field(
        description="options that require a new gate of the answers"
    )
    removed_variables: dict[str, str] = Field(
        description="removed environment variables, and what to do instead"
    )


@cache
def vllm_facts() -> EngineFacts:
    """Return the data about vLLM."""
    file = Path(recipes.__file__).parent / "engines" / "vllm-facts.yaml"
    return parse(file, "facts", EngineFacts)
