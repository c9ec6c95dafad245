"""Minutes of a variant's stages on a GPU type: observed, else estimated, else unknown.

*Observed* durations are of finished stages of the store on that GPU type, for a model whose variant
has the same size. An *estimate* is a lower bound from published figures and two assumptions
(`DISK_BYTES_PER_S`, `SHARE_OF_PEAK`). It counts disk and matrix products alone and is not validated
on GPUs. Serving and measuring have no estimate.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from pipeline.capacity.stage_resources import limit_calibration
from pipeline.core.record import Record
from pipeline.core.stage import TypedStageRecord
from pipeline.core.store import Store
from pipeline.inspection.inspection import CheckpointInspection
from pipeline.inspection.variant_size import VariantWeights
from pipeline.serving.served_model import ServedModel
from pipeline.stages import known_of
from pipeline.stages.check_weights import CheckWeightsParameters
from pipeline.stages.coherence import CoherenceResult
from pipeline.stages.dry_run import DryRunParameters
from pipeline.stages.quantize import QuantizeParameters, QuantizeResult
from pipeline.stages.speed import SpeedParameters
from recipes.gpu import GpuType
from recipes.schema import Recipe, ServingProfile

NOT_KNOWN = "not known"
DISK_BYTES_PER_S = 1e9
SHARE_OF_PEAK = 0.3
FLOP_PER_PARAMETER = 2  # one multiplication and one addition a token
SAME_SIZE = 0.02  # a variant of the same model differs by no more
Known = TypedStageRecord[Record, Record]


@dataclass(frozen=True)
class StageDuration:
    """Expected time of one stage."""

    stage: str  # quantize, check_weights, serve (one start), measure (all suites, speed)
    variant: str
    minutes: float | None  # None if unknown
    basis: str  # "seen here", or the sources of an estimate


@dataclass
class ObservedDurations:
    """Seconds of the store's finished stages of one model on one GPU type."""

    # by (stage, variant); one entry a run. For `measure`, a run's stages are summed; `speed` is the
    # part of it under load.
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Path, gpu: GpuType, weights: dict[str, VariantWeights]) -> ObservedDurations:
        """Read the store's records; the variants' sizes identify the checkpoint."""
        records = list(known_of(Store(store).records(leave_out_damaged=True)))
        digests = _digests_on(records, gpu) & _digests_of(records, weights)
        seen = cls()
        measured: dict[tuple[str, str, str], float] = {}
        for kept in records:
            record, of = kept.record, kept.parameters
            parts = ["measure"]
            if isinstance(of, SpeedParameters):
                of, parts = of.sides["candidate"], ["measure", "speed"]
            if isinstance(of, DryRunParameters):
                of = of.quantize
            if (
                isinstance(of, QuantizeParameters | CheckWeightsParameters)
                and of.checkpoint in digests
            ):
                seen._add(record.stage, record.variant, record.seconds)
            elif _is_on(of, gpu) and of.checkpoint in digests:
                for part in parts:
                    label = (part, record.variant, of.checkpoint)
                    measured[label] = measured.get(label, 0.0) + record.seconds
                if isinstance(kept.result, CoherenceResult):
                    seen._add("serve", record.variant, kept.result.server.ready_seconds)
        for (part, variant, _), total in measured.items():
            seen._add(part, variant, total)
        return seen

    def minutes(self, stage: str, variant: str) -> float | None:
        """Return the median; None without observations."""
        found = self.seconds.get((stage, variant))
        return statistics.median(found) / 60 if found else None

    def _add(self, stage: str, variant: str, seconds: float) -> None:
        self.seconds.setdefault((stage, variant), []).append(seconds)


def stage_minutes(
    inspection: CheckpointInspection,
    recipes: list[Recipe],
    weights: dict[str, VariantWeights],
    gpu: GpuType,
    profile: ServingProfile | None,
    seen: ObservedDurations,
) -> list[StageDuration]:
    """Return the durations of all stages; the baseline has no quantize and no check_weights."""
    found = []
    for recipe in recipes:
        made_by = ("quantize", "check_weights") if recipe.quantization.quantizes else ()
        for stage in (*made_by, "serve", "measure"):
            known = seen.minutes(stage, recipe.name)
            if known is not None:
                found.append(StageDuration(stage, recipe.name, known, "seen here"))
            elif stage == "quantize":
                made = weights[recipe.name]
                found.append(estimate(inspection, recipe, made, gpu, profile))
            else:
                found.append(StageDuration(stage, recipe.name, None, NOT_KNOWN))
    return found


def estimate(
    inspection: CheckpointInspection,
    recipe: Recipe,
    weights: VariantWeights,
    gpu: GpuType,
    profile: ServingProfile | None,
) -> StageDuration:
    """Estimate a recipe's `quantize`; unknown for solvers that are not modeled, such as GPTQ's."""
    moved = inspection.recipe_source.weights_bytes + weights.bytes
    disk = f"{moved / 1e9:,.1f} GB of disk at an assumed {DISK_BYTES_PER_S / 1e9:g} GB/s"
    seconds = moved / DISK_BYTES_PER_S
    if recipe.quantization.is_streamed:
        return StageDuration("quantize", recipe.name, seconds / 60, f"lower estimate: {disk}")
    passes = recipe.quantization.forward_passes
    calibration = limit_calibration(recipe.quantization.calibration, profile)
    if passes is None or calibration is None or gpu.tflops_16_bit is None:
        return StageDuration("quantize", recipe.name, None, NOT_KNOWN)
    tokens = calibration.samples * calibration.max_tokens
    parameters = sum(each.tensor.elements for each in weights.tensors if each.quantized)
    flop = FLOP_PER_PARAMETER * parameters * tokens * passes
    seconds += flop / (SHARE_OF_PEAK * gpu.tflops_16_bit * 1e12)
    return StageDuration(
        "quantize",
        recipe.name,
        seconds / 60,
        f"lower estimate: {tokens:,} tokens x {passes:.0f} passes x {FLOP_PER_PARAMETER} FLOP x "
        f"{parameters / 1e9:,.1f} B parameters at {100 * SHARE_OF_PEAK:.0f} % of "
        f"{gpu.tflops_16_bit:g} TFLOPS; {disk}",
    )


def _is_on(of: Record, gpu: GpuType) -> TypeGuard[ServedModel]:
    return isinstance(of, ServedModel) and of.hardware.gpu == gpu.driver_name


def _digests_on(records: list[Known], gpu: GpuType) -> set[str]:
    """Return the checkpoints that were served on this GPU type."""
    return {kept.parameters.checkpoint for kept in records if _is_on(kept.parameters, gpu)}


def _digests_of(records: list[Known], weights: dict[str, VariantWeights]) -> set[str]:
    """Return the checkpoints with a variant of the planned size."""
    return {
        kept.parameters.checkpoint
        for kept in records
        if isinstance(kept.parameters, QuantizeParameters)
        and isinstance(kept.result, QuantizeResult)
        and kept.record.variant in weights
        and abs(kept.result.weights_bytes / weights[kept.record.variant].bytes - 1) <= SAME_SIZE
    }
