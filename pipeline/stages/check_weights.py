"""Checks that quantized weights match their recipe, or their own config.

With rounding to nearest, the SQNR hardly depends on the model.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from pipeline.stages import WEIGHTS
from pipeline.stages.adopt import ADOPT
from pipeline.stages.context import StageContext
from pipeline.stages.packed import open_archive
from pipeline.stages.quantize import QUANTIZE
from prepare.errors import EvidenceError, VerificationError
from prepare.record import Record
from prepare.stage import Stage, StageReference, WorkerRuntime
from recipes.checkpoints.checkpoint import CheckpointFolder, read_folder
from recipes.checkpoints.module_kind import is_quantizable, is_tied
from recipes.checkpoints.weight_files import digest_auxiliary_files, read_json, weight_files
from recipes.quantization import AnyQuantization, Quantization
from recipes.quantizers.adopted import AdoptedQuantization
from recipes.weight_format import PLAIN, WeightFormat
from recipes.weights.accounting import WeightComparison, account, open_folder
from recipes.weights.adopted import account_adopted
from recipes.weights.auxiliary_files import (
    check_adopted_files,
    check_auxiliary_files,
    check_config,
    check_only_safetensors,
)
from recipes.weights.layouts import NotComparableError, has_numbers
from recipes.weights.stored_formats import StoredFormats, stored_formats


class CheckWeightsParameters(Record):
    """What they must be."""

    checkpoint: str = Field(description="digest of the source")
    quantization: AnyQuantization


class CheckWeightsRuntime(WorkerRuntime):
    """Place of the source."""

    checkpoint: CheckpointFolder | None = Field(None, description="None: the check is on record")
    archive: str = Field("", description="evidence with the check of these very weights")
    recorded: str = Field("", description="its key there")
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
    "check_weights", 9, CheckWeightsParameters, CheckWeightsRuntime, CheckWeightsResult
)


LAYERS = "layers.jsonl"  # a line a quantized layer, in the stage's folder
# Fraction of rows where compensation may leave a noisy piece: GPTQ moves errors to where outputs
# do not depend on them. Measured: up to 12 of 576 rows in one place.
MAX_ROW_FRACTION = 0.1
WIDE_NOTE = (
    "the weights have 16 bits: those of a dequantized file, and those that were trained "
    "afterwards, look alike; the gates decide"
)


@dataclass(frozen=True)
class LayerCheck:
    """A quantized layer; the worker finds the values from `sqnr_db` on.

    SQNR is None if lossless. `damaged` has (row, first column) of the first pieces whose noise is
    as large as the weights. `most_in_a_column` is the maximum of damaged rows.
    """

    name: str
    format: str
    rows: int
    columns: int
    floor_db: float
    sqnr_db: float | None = None
    damaged: tuple[tuple[int, int], ...] = ()
    most_in_a_column: int = 0
    count: int = 0


@dataclass
class VerificationResult:
    """Facts about a sound variant."""

    layers: list[LayerCheck] = field(default_factory=list)  # each measured layer
    # Changes of type of kept tensors by name, such as 'BF16 to F16'.
    altered: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0  # of the weight files
    notes: list[str] = field(default_factory=list)  # for the user
    # Findings of `compare_outputs`, if columns were rescaled.
    outputs: Mapping[str, Any] | None = None
    # Why the weights were not compared with the source's; empty if they were.
    not_compared: str = ""
    # Median SQNR and lowest floor, in dB; None where columns were rescaled.
    median_db: float | None = None
    floor_db: float | None = None


def run(context: StageContext[CheckWeightsParameters, CheckWeightsRuntime]) -> CheckWeightsResult:
    """Compare the `weights` input with its source (docs/explanation/limits.md)."""
    source = context.runtime.checkpoint
    if source is None:
        return _from_archive(context)
    weights = context.input_record(WEIGHTS)
    output = context.input_folder(WEIGHTS) / "output"
    # Before they are read: a later change is another digest. Registered weights may be links; their
    # digests are known.
    linked = weights.stage == ADOPT.name and not ADOPT.parameters_of(weights).copied
    carried = None if linked else digest_auxiliary_files(output)
    recipe = context.parameters.quantization
    verified, comparison = account_variant(source.path, output, recipe)
    if comparison is not None:
        findings = context.run_worker(
            "recipes.weights.check_weights_worker",
            {
                "comparison": asdict(comparison),
                "texts": context.runtime.texts,
                "trust_remote_code": context.runtime.trust_remote_code,
            },
        )
        judge_numbers(verified, comparison, recipe, findings)
    lines = [json.dumps(asdict(layer)) + "\n" for layer in verified.layers]
    (context.folder / LAYERS).write_text("".join(lines))
    for note in verified.notes:
        context.note(note)
    return CheckWeightsResult(
        weights_digest=QUANTIZE.result_of(weights).weights_digest,
        auxiliary_files_digest=carried,
        weights_bytes=verified.size_bytes,
        size_ratio=verified.size_bytes / (context.runtime.baseline_bytes or source.weights_bytes),
        quantized_tensors=len(verified.layers),
        altered_tensors=verified.altered,
        sqnr=Sqnr(median_db=verified.median_db, floor_db=verified.floor_db)
        if verified.floor_db
        else None,
        outputs=None if verified.outputs is None else Outputs(**verified.outputs),
        not_compared=verified.not_compared,
    )


def _from_archive(
    context: StageContext[CheckWeightsParameters, CheckWeightsRuntime],
) -> CheckWeightsResult:
    """Return what was found of the same weights; EvidenceError if it is of others."""
    runtime = context.runtime
    reference = StageReference(stage=CHECK_WEIGHTS.name, key=runtime.recorded)
    with open_archive(Path(runtime.archive)) as store:
        record = CHECK_WEIGHTS.typed(store.get(reference))
        weights = QUANTIZE.result_of(context.input_record(WEIGHTS)).weights_digest
        if (record.parameters, record.result.weights_digest) != (context.parameters, weights):
            raise EvidenceError(
                "the recorded check is of other weights",
                where=runtime.archive,
                hint="get the version again with `prepare pull`",
            )
        return record.result.model_copy(update={"auxiliary_files_digest": None})


def account_variant(
    source: Path, variant: Path, recipe: Quantization
) -> tuple[VerificationResult, WeightComparison | None]:
    """Check files and headers; return the facts so far, and what numbers to compare, if any.

    VerificationError: for the first defect. CheckpointError: files are missing or damaged, or the
    model differs.
    """
    check_only_safetensors(variant)
    verified = VerificationResult()
    if not isinstance(recipe, AdoptedQuantization):
        comparison = account_made(source, variant, recipe)
        verified.size_bytes = check_smaller(source, variant)
        return verified, comparison
    verified.size_bytes = weights_size(variant)
    verified.notes = check_adopted_files(read_folder(source), read_folder(variant))
    try:
        return verified, account_adopted(source, variant)
    except NotComparableError as error:
        verified.not_compared = error.message
        verified.notes.append(f"the weights are not compared with the source's: {error.message}")
        return verified, None


def account_made(source: Path, variant: Path, recipe: Quantization) -> WeightComparison:
    """Check a made variant's files; return what to compare."""
    config = read_json(variant / "config.json")
    where = f"{variant / 'config.json'}, key quantization_config"
    described = config.get("quantization_config")
    formats = stored_formats(described, where)
    check_auxiliary_files(source, variant)
    check_config(source, variant)
    scheme = (described or {}).get("kv_cache_scheme")
    scales = str(scheme.get("strategy")) if isinstance(scheme, dict) else None
    if scales != recipe.kv_cache_strategy:
        raise VerificationError(
            f"config.json has {scales or 'no'} scales of the KV cache, and the recipe requires "
            f"{recipe.kv_cache_strategy or 'none'}",
            where=f"{where}.kv_cache_scheme",
        )
    return account(
        open_folder(source),
        open_folder(variant),
        lambda module: required_format(formats, module, recipe),
        lambda name, tensor: is_quantizable(name, tensor, recipe.ignore),
        tied=is_tied(read_json(source / "config.json")),
        kv_scales=scales is not None,
        rescaled=recipe.rounding == "rescaled",
        rounds=not recipe.keeps_types,
    )


def required_format(formats: StoredFormats, module: str, recipe: Quantization) -> WeightFormat:
    """Return the module's stored format; VerificationError unless it is the recipe's."""
    form = formats.of(module)
    wanted = recipe.for_module(module).weight_formats
    # The quantizer may reorder columns for any recipe with groups.
    if form is None or replace(form, reordered=False) not in wanted:
        raise VerificationError(
            f"config.json has the weight format '{form}' for '{module}', "
            f"and the recipe requires '{' or '.join(map(str, wanted))}'",
            where=formats.where,
            hint="quantize again; if it happens again, the quantizer's version differs",
        )
    return form


def weights_size(folder: Path) -> int:
    """Return the bytes of the weight files that are loaded; raises as :func:`weight_files`."""
    return sum(path.stat().st_size for path in weight_files(folder))


def check_smaller(source: Path, variant: Path) -> int:
    """Return the weights' size, which must be below the source's."""
    size = weights_size(variant)
    whole = weights_size(source)
    if size >= whole:
        raise VerificationError(
            f"the variant's weights take {size} bytes, the source's only {whole}",
            where=str(variant),
        )
    return size


def judge_numbers(
    verification: VerificationResult,
    comparison: WeightComparison,
    recipe: Quantization,
    findings: Mapping[str, Any],
) -> None:
    """Judge the worker's findings; complete `verification`.

    VerificationError: for the first defect.
    """
    forms = comparison.layers
    for layer in findings["layers"]:
        form = forms[layer["name"]]
        floor = recipe.floor_of(layer["name"], form)
        verification.layers.append(LayerCheck(format=str(form), floor_db=floor, **layer))
    verification.altered = findings["altered"]
    verification.outputs = findings["outputs"]
    unread = [form for form in forms.values() if not has_numbers(form)]
    if findings["rescaled"] and verification.outputs is None and verification.layers:
        verification.not_compared = (
            "columns were rescaled, and no library here converts "
            f"{forms[verification.layers[0].name]} to 16 bits"
        )
    elif unread:
        verification.not_compared = f"no library here dequantizes {unread[0]}"
    if verification.not_compared:
        verification.notes.append(
            f"the numbers of {len(unread) or len(verification.layers)} layers are not compared "
            f"with the source's: {verification.not_compared}; the gates decide"
        )
    if not findings["rescaled"]:
        _judge_layers(verification, recipe, comparison.variant)
    if verification.median_db is not None and {form.name for form in forms.values()} == {PLAIN}:
        verification.notes.append(WIDE_NOTE)


def _judge_layers(verification: VerificationResult, recipe: Quantization, where: str) -> None:
    """Compare layers with their floors; find damaged pieces."""
    lossy = sorted(
        (layer.sqnr_db - layer.floor_db, layer.name, layer)
        for layer in verification.layers
        if layer.sqnr_db is not None
    )
    if lossy:
        _, _, worst = lossy[0]
        verification.floor_db = min(layer.floor_db for layer in verification.layers)
        verification.median_db = statistics.median(layer.sqnr_db or 0.0 for _, _, layer in lossy)
        alike = [layer for _, _, layer in lossy if layer.floor_db == worst.floor_db]
        middle = statistics.median(layer.sqnr_db or 0.0 for layer in alike)
        told = f"the median of {len(alike)} layers is {middle:.1f} dB"
        below = sum(margin < 0 for margin, _, _ in lossy)
        if below:
            raise VerificationError(
                f"the weights of '{worst.name}' have an SQNR of {worst.sqnr_db:.1f} dB, under the "
                f"floor of {worst.floor_db:.0f} dB; {told}"
                + (f", and {below} are under the floor" if below > 1 else ""),
                where=where,
                hint="about 0 dB or less means wrong or missing weights: check how the variant was "
                "written; otherwise use more calibration data, or ignore the layer",
            )
        named = f"{worst.name} with {worst.sqnr_db:.1f} dB (floor {worst.floor_db:.0f})"
        verification.notes.append(f"SQNR of the weights: {told}; the worst is {named}")
    for layer in verification.layers:
        beyond = layer.most_in_a_column > MAX_ROW_FRACTION * layer.rows
        if layer.count and (beyond or recipe.rounding != "compensated"):
            row, column = layer.damaged[0]
            places = "1 place" if layer.count == 1 else f"{layer.count} places, the first"
            raise VerificationError(
                f"the weights of '{layer.name}' are not the source's in {places} in row {row} "
                f"from column {column} on: the difference there is as large as the weights",
                where=where,
                hint="the file is damaged, or the source has such outliers there that a whole "
                "group was rounded away; quantize again, and ignore the layer if it happens again",
            )
