"""Checkpoints that no recipe here can start from, as errors that say so."""

from __future__ import annotations

from collections.abc import Collection

from pipeline.checkpoint.folder import CODE_KEY, QUANTIZER_FILE
from pipeline.core.errors import CheckpointError, PrepareError

GENERATING = ("ForCausalLM", "LMHeadModel")


def architecture_error(architecture: str, config: str) -> PrepareError | None:
    """Models that do not generate text are not quantized here; `config` is named in the message."""
    if architecture.endswith(GENERATING):
        return None
    return CheckpointError(
        f"the architecture '{architecture}' is not supported: "
        "only text-generating decoders are (names that end in ForCausalLM)",
        where=f"{config}, key architectures",
        hint="give a decoder-only language model",
    )


def quantized_error(config: str, names: Collection[str]) -> PrepareError:
    """The error for a checkpoint whose config.json, or a file beside it, says so."""
    beside = config.removesuffix("config.json") + QUANTIZER_FILE
    return CheckpointError(
        "the checkpoint is already quantized",
        where=beside if QUANTIZER_FILE in names else f"{config}, key quantization_config",
        hint="give the original 16-bit checkpoint",
    )


def own_code_error(config: str) -> PrepareError:
    """The error for a checkpoint whose Python code nobody has said to trust."""
    return CheckpointError(
        "the checkpoint comes with Python code of its own that would have to be run",
        where=f"{config}, key {CODE_KEY}",
        hint="read that code; if you trust it, add --yes-trust-remote-code",
    )
