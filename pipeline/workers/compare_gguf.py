"""Worker: compares a quantized GGUF file with its source, which llama.cpp's converter reads again.

Runs in the `serve-llamacpp` environment. gguf dequantizes; it shares no code with the quantizer.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pipeline.core.errors import VerificationError
from pipeline.core.events import Progress
from pipeline.workers.gguf_file import converted, facts_of, settings_of, shape_of
from pipeline.workers.gguf_types import choose_type

TASK = "check_weights"
ROWS = 4096  # dequantized together


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Compare every value and tensor.

    Args:
        spec: checkpoint (folder), weights (file), type (kind of file), trust_remote_code.

    Returns:
        layers, as LayerStats, and kept, the number of unquantized tensors.

    Raises:
        VerificationError: names the first value or tensor that is not as it must be.
    """
    from gguf import GGUFReader

    place = Path(spec["checkpoint"])
    with converted(place, trust_remote_code=spec["trust_remote_code"], folder=output) as source:
        try:
            variant = GGUFReader(spec["weights"])
        except (OSError, ValueError) as error:
            raise VerificationError(
                f"the weights are no whole GGUF file: {error}", where=spec["weights"]
            ) from error
        return compare(source, variant, spec["type"], spec["weights"], progress)


def compare(source: Any, variant: Any, kind: str, where: str, progress: Progress) -> dict[str, Any]:
    """Compare two files; see `run`."""
    before, after = settings_of(source), settings_of(variant)
    if differing := sorted(
        name
        for name in before.keys() | after.keys()
        if name not in before or name not in after or before[name] != after[name]
    ):
        raise VerificationError(f"'{differing[0]}' is not the source's", where=where)
    stored = {tensor.name: tensor for tensor in variant.tensors}
    if strange := sorted({tensor.name for tensor in source.tensors} ^ stored.keys()):
        raise VerificationError(f"'{strange[0]}' is missing or added", where=where)
    facts, layers, kept = facts_of(source), [], 0
    for done, tensor in enumerate(source.tensors):
        other, shape = stored[tensor.name], shape_of(tensor)
        chosen = choose_type(kind, tensor.name, shape, facts) or tensor.tensor_type.name
        if (other.tensor_type.name, shape_of(other)) != (chosen, shape):
            raise VerificationError(
                f"'{tensor.name}' is stored as {other.tensor_type.name} of {shape_of(other)}, and "
                f"must be {chosen} of {shape}",
                where=where,
            )
        if other.tensor_type == tensor.tensor_type:
            if tensor.data.tobytes() != other.data.tobytes():
                raise VerificationError(f"'{tensor.name}' is not the source's", where=where)
            kept += 1
        else:
            layers.append(
                {
                    "name": tensor.name.removesuffix(".weight"),
                    "format": chosen,
                    "rows": math.prod(shape[:-1]),
                    "columns": shape[-1],
                    "sqnr_db": signal_to_noise(tensor, other, where),
                }
            )
        progress.advance(TASK, done + 1, len(source.tensors), "tensors")
    return {"layers": layers, "kept": kept}


def signal_to_noise(tensor: Any, other: Any, where: str) -> float | None:
    """Return the SQNR in dB; None if nothing was lost."""
    import numpy as np
    from gguf.quants import dequantize

    columns = shape_of(tensor)[-1]
    before = tensor.data.reshape(-1, tensor.data.shape[-1])
    after = other.data.reshape(-1, other.data.shape[-1])
    signal = noise = 0.0
    for first in range(0, len(before), ROWS):
        rows = slice(first, first + ROWS)
        values = dequantize(before[rows], tensor.tensor_type).reshape(-1, columns)
        found = dequantize(after[rows], other.tensor_type).reshape(-1, columns)
        if not np.isfinite(found).all():
            raise VerificationError(f"'{other.name}' has values that are not finite", where=where)
        signal += float(np.square(values, dtype=np.float64).sum())
        noise += float(np.square(values - found, dtype=np.float64).sum())
    if noise == 0.0:
        return None
    return 10 * math.log10(signal / noise) if signal else -math.inf
