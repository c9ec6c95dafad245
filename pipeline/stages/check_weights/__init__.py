"""The stage that compares a variant with its source."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.record import Record
from pipeline.core.stage import Stage, WorkerRuntime
from recipes.checkpoints.folder import Checkpoint
from recipes.quantization import AnyQuantization


class CheckWeightsParameters(Record):
    """What they must be."""

    checkpoint: str = Field(description="digest of the source")
    quantization: AnyQuantization


class CheckWeightsRuntime(WorkerRuntime):
    """Place of the source."""

    checkpoint: Checkpoint
    trust_remote_code: bool = False
    texts: str = Field("", description="file whose first tokens a rescaled variant is compared on")
    baseline_bytes: int = Field(0, description="of the weights that it serves; 0: the source's")


class Sqnr(Record):
    """Signal-to-quantization-noise ratio of the layers."""

    median_db: float | None
    floor_db: float | None = Field(description="the lowest of the layers' minima")


class Outputs(Record):
    """Outputs against the source's, over one text."""

    tokens: int
    divergence_nats: float = Field(description="mean Kullback-Leibler divergence of a token")
    same_next_token: float = Field(description="share of positions with the same most likely token")
    worst_block: str = Field(description="block with the least signal-to-noise ratio")
    worst_block_db: float | None = Field(
        description="its ratio, of what it adds to its input; None if lossless"
    )


class CheckWeightsResult(Record):
    """Facts on sound weights."""

    weights_digest: str = Field(
        description="so that what was measured of other weights is stale when they are made again"
    )
    auxiliary_files_digest: str | None = Field(
        None,
        description="of every file next to the weights: config, tokenizer, chat template, code; "
        "None for registered weights, whose digests are checked instead",
    )
    weights_bytes: int | None = None
    size_ratio: float | None = Field(None, description="to the baseline's")
    quantized_tensors: int | None = Field(None, description="layers that were measured")
    altered_tensors: dict[str, str] = Field({}, description="how each is stored otherwise")
    sqnr: Sqnr | None = Field(None, description="None if columns were rescaled")
    outputs: Outputs | None = Field(None, description="if columns were rescaled")
    not_compared: str = Field(
        "", description="why the numbers were not compared; empty if they were"
    )


CHECK_WEIGHTS = Stage(
    "check_weights", 8, CheckWeightsParameters, CheckWeightsRuntime, CheckWeightsResult
)
