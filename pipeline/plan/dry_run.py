"""Selects variants for a dry run on two layers, and builds its stage."""

from __future__ import annotations

from pathlib import Path

from pipeline.core.stage_record import StageSpec
from pipeline.inspection.truncated_checkpoint import RETAINED_LAYERS
from pipeline.stages.check_weights import CHECK_WEIGHTS
from pipeline.stages.dry_run import DRY_RUN, DryRunParameters
from pipeline.stages.quantize import QUANTIZE
from recipes.schema import CalibrationLimit

# From this size on a calibration takes so long that a minute before it is well spent.
WORTH_BYTES = 2_000_000_000
SAMPLES = 4
TOKENS = 128


def is_worth_it(weights_bytes: int, wanted: bool | None) -> bool:
    """Return the user's choice; None decides by the checkpoint's size."""
    return weights_bytes >= WORTH_BYTES if wanted is None else wanted


def dry_run_stage(quantize: StageSpec, check_weights: StageSpec) -> StageSpec | None:
    """Build the dry run of a variant's two stages, with few samples.

    Returns:
        None for a recipe without calibration, which takes minutes.
    """
    parameters = QUANTIZE.parameters_of(quantize)
    calibration = parameters.quantization.calibration
    if calibration is None:
        return None
    limit = CalibrationLimit(samples=SAMPLES, max_tokens=TOKENS)
    few = parameters.quantization.model_copy(update={"calibration": limit.limit(calibration)})
    return DRY_RUN.spec(
        quantize.variant,
        DryRunParameters(
            layers=RETAINED_LAYERS,
            quantize=parameters.model_copy(update={"quantization": few}),
            check_weights=CHECK_WEIGHTS.parameters_of(check_weights),
            revisions={each.name: each.revision for each in (QUANTIZE, CHECK_WEIGHTS)},
        ),
        {},
        QUANTIZE.runtime_of(quantize),
        Path(quantize.store),
    )
