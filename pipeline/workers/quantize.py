"""Worker: makes a quantized checkpoint, inside the `quantize` environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.errors import UsageError
from pipeline.core.events import Progress
from pipeline.environments.quantizers import is_streamed
from pipeline.workers.fp8_stream.stream import stream_fp8
from pipeline.workers.protocol import versions_of
from pipeline.workers.quantize_llm_compressor import LIBRARIES, quantize_whole_model
from recipes.group_sizes import sizes_to_try

KINDS = ("preset", "awq", "gptq")


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write the quantized checkpoint into `output`.

    Args:
        spec: checkpoint (folder), quantization (as in a recipe, `ignore` resolved),
            calibration_file (JSONL or text, None for a Hub dataset), trust_remote_code.

    Returns:
        facts for the record: what was quantized, with what, and the digest of the calibration.

    Raises:
        StageError: the group sizes do not divide, there are too few calibration tokens, or the
            library does not know how to quantize the architecture.
    """
    quantization = spec["quantization"]
    if quantization["kind"] not in KINDS:
        raise UsageError(f"no quantizer for the kind '{quantization['kind']}'")
    if is_streamed(quantization):
        source, scheme = Path(spec["checkpoint"]), quantization["scheme"]
        facts = stream_fp8(source, output, scheme, quantization["ignore"], progress)
        sizes = sizes_to_try(quantization)
        groups = {"group_size": sizes[0]} if sizes else {}
        return {**facts, **groups, "versions": versions_of(*LIBRARIES)}
    return quantize_whole_model(spec, progress, output)
