"""The library llm-compressor, as its workers use it: versions, progress, defects."""

from __future__ import annotations

import re
from typing import Any

from prepare.events import Progress

LIBRARIES = ("llmcompressor", "compressed-tensors", "transformers", "torch")
"""Libraries whose change can change the weights."""


def leave_memory_unpinned() -> None:
    """Disable pinned memory: llm-compressor 0.14 pins cached activations, which fails on a CPU."""
    from llmcompressor.pipelines.cache import IntermediatesCache

    IntermediatesCache.pin_memory = lambda self, *args, **kwargs: None


def follow_bars(progress: Progress, kind: str) -> None:
    """Convert the library's progress bars to events: it offers no other hook.

    The sequential pipeline names its bars ``(layer/layers): ...``.
    """
    import tqdm.std

    original = tqdm.std.tqdm.update
    layer_pattern = re.compile(r"\((\d+)/(\d+)\)")

    def update(bar: Any, n: float | None = 1) -> Any:
        shown = original(bar, n)
        description = str(bar.desc or "")
        if match := layer_pattern.search(description):
            progress.advance(f"quantize ({kind})", int(match[1]), int(match[2]), "layers")
        elif description.startswith("Compressing") and bar.total:
            progress.advance("compress", int(bar.n), int(bar.total), "modules")
        elif description.startswith("Quantizing") and bar.total:
            progress.advance(f"quantize ({kind})", int(bar.n), int(bar.total), "weight files")
        return shown

    tqdm.std.tqdm.update = update


def save_contiguous(library: Any) -> None:
    """Make the library save matrices whose last block is cut.

    llm-compressor 0.14 passes views, which safetensors refuses.
    """
    save = library.save_file
    library.save_file = lambda tensors, path: save(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, path
    )
