"""Quantizes the checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pydantic import Field

from pipeline.stages.context import StageContext
from prepare.digest import digest_file
from prepare.process_environment import NetworkAccess
from prepare.record import Record
from prepare.stage import Stage, WorkerRuntime
from recipes.checkpoints.checkpoint import CheckpointFolder
from recipes.checkpoints.folder import AUXILIARY_FILES, matches
from recipes.checkpoints.small_files import small_names
from recipes.checkpoints.weight_files import weight_files, weights_digest
from recipes.quantization import AnyQuantization, for_worker
from recipes.quantizers.calibration import ROWS


class WeightsProvenance(Record):
    """How weights are, or were, made."""

    checkpoint: str = Field(description="digest of the source")
    quantization: AnyQuantization
    calibration_data: dict[str, Any] = Field({}, description="identity of the texts")
    environment: str = Field(description="identity of the one that quantizes")


class CalibrationCompute(Record):
    """Settings that change a calibration's numbers."""

    dtype: str | None = Field(None, description="None for the model's own")
    environment: dict[str, str] = Field({}, description="variables that limit the CPU's features")


class QuantizeParameters(WeightsProvenance):
    """How weights are made."""

    trust_remote_code: bool = False
    compute: CalibrationCompute = CalibrationCompute()

    @property
    def kind(self) -> str:
        return self.quantization.kind


class QuantizeRuntime(WorkerRuntime):
    """Source and texts."""

    checkpoint: CheckpointFolder
    recipe: dict[str, Any] = Field({}, description="as it is kept next to the weights")
    calibration_file: str | None = None
    needs_hub: bool = False


class KvClipping(Record):
    """Elements of keys and values that are larger than the scale of their layer allows."""

    tokens: int = Field(ge=1, description="of texts that were not calibrated on")
    keys: float = Field(ge=0, le=1, description="share of all elements")
    values: float = Field(ge=0, le=1, description="share of all elements")
    worst_layer: str = Field(max_length=512, description="the module that clips the largest share")
    worst_share: float = Field(ge=0, le=1, description="its larger share, of keys or of values")

    @property
    def words(self) -> str:
        text = (
            f"over {self.tokens:,} tokens that were not calibrated on, the scales of the KV cache "
            f"clip {self.keys:.2%} of the keys and {self.values:.2%} of the values"
        )
        if not self.worst_share:
            return text
        return f"{text}; at most {self.worst_share:.2%} of a layer's ({self.worst_layer})"


class QuantizeResult(Record):
    """Facts on the weights; None if not reported."""

    weights_digest: str
    weights_bytes: int
    versions: dict[str, str] = Field({}, description="of the libraries")
    scheme: str | None = None
    group_size: int | None = None
    quantized_modules: int | None = None
    calibration_blocks: int | None = None
    calibration_tokens: int | None = None
    calibration_digest: str | None = None
    experts: int | None = None
    least_tokens_of_an_expert: int | None = None
    shards: int | None = None
    source_bytes: int | None = None
    device: str | None = None
    kv_clipping: KvClipping | None = None


QUANTIZE = Stage("quantize", 3, QuantizeParameters, QuantizeRuntime, QuantizeResult)


RESOLVED_RECIPE = "recipe.json"


def run(context: StageContext[QuantizeParameters, QuantizeRuntime]) -> QuantizeResult:
    """Quantize, then restore tokenizer files.

    Saving can add a truncation length, for example.
    """
    output = context.output_folder()
    parameters = context.parameters
    runtime = context.runtime
    quantization = parameters.quantization
    source = runtime.checkpoint
    resolved = {**runtime.recipe, "quantization": quantization.model_dump(mode="json")}
    text = json.dumps(resolved, indent=2) + "\n"
    (context.folder / RESOLVED_RECIPE).write_text(text, encoding="utf-8")
    file = runtime.calibration_file
    if runtime.needs_hub and quantization.calibration is not None:
        # The other worker may run code of the checkpoint, which gets no token.
        asked = quantization.calibration.model_dump()
        context.run_worker("recipes.quantizers.calibration", asked, needs=[NetworkAccess.HUB])
        file = str(context.folder / ROWS)
    facts = context.run_worker(
        quantization.worker,
        {
            "checkpoint": str(source.path),
            "quantization": quantization.model_dump(),
            "group_sizes": quantization.group_sizes,
            "calibration_file": file,
            "trust_remote_code": parameters.trust_remote_code,
            "compute_dtype": parameters.compute.dtype,
        },
        output=output,
        environment=parameters.compute.environment,
        plugins=[for_worker(quantization)],
    )
    copy_carried_over(source, output)
    result = QuantizeResult(
        **facts,
        weights_digest=weights_digest(output, digest_file),
        weights_bytes=sum(file.stat().st_size for file in weight_files(output)),
    )
    if result.kv_clipping is not None:
        context.progress.note(result.kv_clipping.words)
    return result


def copy_carried_over(source: CheckpointFolder, output: Path) -> None:
    """Copy the files that quantization must not change; remove similar ones."""
    names = {
        name
        for name in source.names
        if matches(name, AUXILIARY_FILES) or name.endswith(".py")  # code of the model
    }
    for name in small_names(output):
        if matches(name, AUXILIARY_FILES):
            (output / name).unlink()
    for name in names:
        (output / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source.path / name, output / name)
