"""Errors for checkpoints that no recipe supports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prepare.errors import CheckpointError, PrepareError
from recipes.checkpoints.folder import CODE_KEY
from recipes.checkpoints.source_format import SourceFormat

OF_IMAGES = "ForConditionalGeneration"  # and of encoder-decoders, which have no `vision_config`


def architecture_error(
    architecture: str, config: Mapping[str, Any], where: str
) -> PrepareError | None:
    """Return an error unless the model generates text."""
    sees = architecture.endswith(OF_IMAGES) and "vision_config" in config
    if sees or architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return None
    return CheckpointError(
        f"the architecture '{architecture}' is not supported: only text-generating decoders are "
        f"(names that end in ForCausalLM, or in {OF_IMAGES} with a vision_config)",
        where=f"{where}, key architectures",
        hint="use a decoder-only language model, or one of images and text",
    )


def dequantization_error(config: str, form: SourceFormat | None) -> PrepareError | None:
    """Return why weights cannot be converted to 16 bits."""
    if form is None or form.converter is not None:
        return None
    return CheckpointError(
        f"recipes need 16-bit weights, and this checkpoint has {form.label} weights: {form.reason}",
        where=f"{config}, key quantization_config",
        hint="start from the 16-bit checkpoint, if there is one",
    )


def own_code_error(config: str) -> PrepareError:
    """Return the error for untrusted Python code."""
    return CheckpointError(
        "the checkpoint requires running its own Python code",
        where=f"{config}, key {CODE_KEY}",
        hint="read that code; if you trust it, add --trust-remote-code; if transformers has the "
        f"model itself, use a copy of the folder whose {Path(config).name} lacks {CODE_KEY}",
    )
