"""Errors for checkpoints that no recipe supports."""

from __future__ import annotations

from collections.abc import Collection

from pipeline.checkpoint.folder import CODE_KEY, QUANTIZER_FILE
from pipeline.core.errors import CheckpointError, PrepareError

GENERATING = ("ForCausalLM", "LMHeadModel")


def architecture_error(architecture: str, config: str) -> PrepareError | None:
    """Return an error for models that do not generate text; `config` is its location."""
    if architecture.endswith(GENERATING):
        return None
    return CheckpointError(
        f"the architecture '{architecture}' is not supported: "
        "only text-generating decoders are (names that end in ForCausalLM)",
        where=f"{config}, key architectures",
        hint="use a decoder-only language model",
    )


def quantized_error(config: str, names: Collection[str]) -> PrepareError:
    """Return the error for a checkpoint that is marked as quantized."""
    marker = config.removesuffix("config.json") + QUANTIZER_FILE
    return CheckpointError(
        "the checkpoint is already quantized",
        where=marker if QUANTIZER_FILE in names else f"{config}, key quantization_config",
        hint="use the original 16-bit checkpoint",
    )


def own_code_error(config: str) -> PrepareError:
    """Return the error for a checkpoint with untrusted Python code."""
    return CheckpointError(
        "the checkpoint requires running its own Python code",
        where=f"{config}, key {CODE_KEY}",
        hint="read that code; if you trust it, add --trust-remote-code",
    )
