"""Checks that quantized weights match the recipe, before anything is served."""

from __future__ import annotations

import json
from dataclasses import asdict

from pipeline.stages.adopt import ADOPT
from pipeline.stages.check_weights import (
    CheckWeightsParameters,
    CheckWeightsResult,
    CheckWeightsRuntime,
    Outputs,
    Sqnr,
)
from pipeline.stages.context import StageContext
from pipeline.stages.quantize import QUANTIZE
from recipes.checkpoints.weight_files import digest_auxiliary_files
from recipes.quantizers.adopted import AdoptedQuantization

LAYERS = "layers.jsonl"  # a line a quantized layer, in the stage's folder


def run(context: StageContext[CheckWeightsParameters, CheckWeightsRuntime]) -> CheckWeightsResult:
    """Compare the `weights` input with its source (docs/explanation/limits.md)."""
    # Imported here: every command imports the stages.
    from recipes.weights.adopted import verify_adopted
    from recipes.weights.verification import verify_variant

    source, weights = context.runtime.checkpoint, context.input_record("weights")
    output = context.input_folder("weights") / "output"
    # Before they are read: a later change is another digest. Registered weights may be links; their
    # digests are known.
    linked = weights.stage == ADOPT.name and not ADOPT.parameters_of(weights).copied
    carried = None if linked else digest_auxiliary_files(output)
    quantization = context.parameters.quantization
    is_adopted = isinstance(quantization, AdoptedQuantization)
    found = (verify_adopted if is_adopted else verify_variant)(
        source.path,
        output,
        quantization,
        lambda comparison: context.run_worker(
            "recipes.weights.check_weights_worker",
            {
                "comparison": asdict(comparison),
                "texts": context.runtime.texts,
                "trust_remote_code": context.runtime.trust_remote_code,
            },
        ),
    )
    lines = [json.dumps(asdict(layer)) + "\n" for layer in found.layers]
    (context.folder / LAYERS).write_text("".join(lines))
    for note in found.notes:
        context.note(note)
    return CheckWeightsResult(
        weights_digest=QUANTIZE.result_of(weights).weights_digest,
        auxiliary_files_digest=carried,
        weights_bytes=found.size_bytes,
        size_ratio=found.size_bytes / (context.runtime.baseline_bytes or source.weights_bytes),
        quantized_tensors=len(found.layers),
        altered_tensors=found.altered,
        sqnr=Sqnr(median_db=found.median_db, floor_db=found.floor_db) if found.floor_db else None,
        outputs=None if found.outputs is None else Outputs(**found.outputs),
        not_compared=found.not_compared,
    )
