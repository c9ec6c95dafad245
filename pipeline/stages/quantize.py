"""Quantizes the checkpoint with llm-compressor; the variant's checkpoint lies in `output/`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pipeline.checkpoint import CARRIED_OVER, Checkpoint
from pipeline.stages.context import StageContext

REVISION = 1


def run(context: StageContext) -> dict[str, Any]:
    """Quantize, then put the source's own tokenizer files in place of re-saved ones.

    Saving a tokenizer again can change it (a truncation length set while calibrating is saved
    with it, for one), so what the source has is copied as it is.
    """
    output = context.output_folder()
    source = Checkpoint.model_validate(context.runtime["checkpoint"])
    facts = context.run_worker(
        "quantize",
        {
            "checkpoint": str(source.path),
            "quantization": context.parameters["quantization"],
            "calibration_file": context.runtime.get("calibration_file"),
            "needs_hub": context.runtime.get("needs_hub", False),
            "trust_remote_code": context.parameters["trust_remote_code"],
        },
        output=output,
    )
    copy_carried_over(source, output)
    facts["weights_bytes"] = sum(path.stat().st_size for path in output.glob("*.safetensors"))
    return facts


def copy_carried_over(source: Checkpoint, output: Path) -> None:
    """Copy the files that quantization must not change, and remove strangers of their kind."""
    names = {
        file.name
        for file in source.files
        if file.name in CARRIED_OVER or file.name.endswith(".py")  # code the model is made of
    }
    for name in CARRIED_OVER:
        (output / name).unlink(missing_ok=True)
    for name in names:
        shutil.copyfile(source.path / name, output / name)
