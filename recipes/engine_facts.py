"""The shape of what is known of an engine's command line beyond its own parser's data."""

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
]
Option = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]


class EngineFacts(ConfigModel):
    """What guides say of an engine that is no longer so, and what is so without being asked."""

    name: Name
    summary: str
    versions: dict[Literal["cpu", "cuda"], str] = Field(description="that all this holds for")
    resolved: dict[Literal["cpu", "cuda"], dict[Option, str]] = Field(
        description="defaults that the engine finds when it starts"
    )
    parameters: dict[Lever, str] = Field(description="what each is by default")
    removed_options: dict[Option, str] = Field(description="former options, and their replacements")
    no_effect: dict[Option, str] = Field(description="taken, and without effect")
    slows_down: dict[str, str] = Field(description="`option=value` that costs speed, and why")
    changes_outputs: list[Option] = Field(description="with these, answers have to be gated again")
    removed_variables: dict[str, str] = Field(
        description="of the environment, and what to do instead"
    )


@cache
def vllm_facts() -> EngineFacts:
    """Those of vLLM."""
    file = Path(recipes.__file__).parent / "engines" / "vllm-facts.yaml"
    return parse(file, "facts", EngineFacts)
