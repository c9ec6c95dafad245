"""Rejection of GGUF weights, which are quantized, with code that converts them."""

from __future__ import annotations

from pathlib import PurePosixPath

from pipeline.core.errors import CheckpointError

SUFFIX = ".gguf"

# transformers 5 saves a model from GGUF only after its quantization config is removed.
_CONVERSION = """\
from transformers import AutoModelForCausalLM as Model, AutoTokenizer as Tokenizer
model = Model.from_pretrained({source!r}, gguf_file={file!r}, dtype="bfloat16"); \
del model.config.quantization_config; model.hf_quantizer = None
model.save_pretrained({target!r}); \
Tokenizer.from_pretrained({source!r}, gguf_file={file!r}).save_pretrained({target!r})"""


def gguf_error(
    source: str, file: str, where: str, kind: type[CheckpointError] = CheckpointError
) -> CheckpointError:
    """Return the error for weights in a GGUF file."""
    target = f"{PurePosixPath(source).name}-bf16"
    lines = "\n".join(
        f"    {line}"
        for line in _CONVERSION.format(source=source, file=file, target=target).splitlines()
    )
    return kind(
        f"the weights are a GGUF file ({file}), which is already quantized; a run requires "
        "safetensors in 16 bits",
        where=where,
        hint="use the original checkpoint; or upcast it in Python with transformers, torch and "
        "gguf, and check the tokenizer, which the conversion may change. The weights "
        f"keep the rounding of the GGUF file:\n{lines}",
    )
