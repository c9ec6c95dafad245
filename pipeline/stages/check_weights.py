"""Checks that quantized weights are what the recipe promises, before anything is served."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from pipeline.checkpoint.folder import Checkpoint
from pipeline.stages.context import StageContext
from recipes.quantization import Quantization

LAYERS = "layers.jsonl"  # a line a quantized layer, in the stage's folder


def run(context: StageContext) -> dict[str, Any]:
    """Compare the `weights` input with its source; docs/verification.md says what is checked.

    Raises:
        VerificationError: naming the first file or tensor that is wrong.
    """
    # Imported here: numbers are for this stage alone, and every command imports the stages.
    from pipeline.verification.floors import median_db, worst_layers
    from pipeline.verification.verification import verify_variant

    source = Checkpoint.model_validate(context.runtime["checkpoint"])
    recipe: Quantization = TypeAdapter(Quantization).validate_python(
        context.parameters["quantization"]
    )
    found = verify_variant(
        source.path,
        context.input_folder("weights") / "output",
        recipe,
        lambda done, total: context.advance("check_weights", done, total, "bytes"),
    )
    lines = [json.dumps(layer.to_dict()) + "\n" for layer in found.layers]
    (context.folder / LAYERS).write_text("".join(lines))
    for note in found.notes:
        context.note(note)
    return {
        "quantized_tensors": len(found.layers),
        "kept_tensors": found.kept,
        "merged_tensors": found.merged,
        "altered_tensors": found.altered,
        "scales_checked": found.scales,
        "sqnr": {
            "median_db": median_db(found.layers),
            "floor_db": found.floor_db,
            "worst": [layer.to_dict() for layer in worst_layers(found.layers)],
        },
        # So that whatever was measured of other weights is stale when they are made again.
        "weights_digest": context.input_record("weights").result["weights_digest"],
        "weights_bytes": found.size_bytes,
        "planned_bytes": found.planned_bytes,
        "size_ratio": found.size_bytes / source.weights_bytes,
        "config_keys_dropped": found.dropped_keys,
    }
