"""Which variants are tried on two layers first, and as what stage."""

from __future__ import annotations

from pathlib import Path

from pipeline.core.stage_key import REVISIONS, stage_spec
from pipeline.core.stage_record import StageSpec
from pipeline.inspection.cut_checkpoint import KEPT_LAYERS

# From this size on a calibration takes so long that a minute before it is well spent.
WORTH_BYTES = 2_000_000_000
SAMPLES = 4
TOKENS = 128


def is_worth_it(weights_bytes: int, wanted: bool | None) -> bool:
    """Whether variants of a checkpoint are tried first.

    Args:
        weights_bytes: of the source.
        wanted: as the user says; None to go by the size.
    """
    return weights_bytes >= WORTH_BYTES if wanted is None else wanted


def dry_run_stage(quantize: StageSpec, check_weights: StageSpec) -> StageSpec | None:
    """The dry run of the two stages that make a variant: their parameters, with few samples.

    Returns:
        None for a recipe without calibration: it is a matter of minutes, and fails at once.
    """
    quantization = dict(quantize.parameters["quantization"])
    calibration = quantization.get("calibration")
    if calibration is None:
        return None
    quantization["calibration"] = {
        **calibration,
        "samples": min(SAMPLES, calibration["samples"]),
        "max_tokens": min(TOKENS, calibration["max_tokens"]),
    }
    return stage_spec(
        "dry_run",
        quantize.variant,
        {
            "layers": KEPT_LAYERS,
            "quantize": {**quantize.parameters, "quantization": quantization},
            "check_weights": check_weights.parameters,
            "revisions": {name: REVISIONS[name] for name in ("quantize", "check_weights")},
        },
        {},
        {**check_weights.runtime, **quantize.runtime},
        Path(quantize.store),
    )
