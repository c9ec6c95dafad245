"""Verification of a variant against its source, tensor by tensor, in bounded memory.

Large tensors are read a few rows at a time: about 60 MB for each thread. Only AutoAWQ's format
needs one packed matrix at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.checkpoint.weight_files import read_json
from pipeline.core.errors import VerificationError
from pipeline.inspection.linear_layers import is_quantizable, is_tied
from pipeline.inspection.variant_size import estimated_bytes
from pipeline.verification import sqnr_floors
from pipeline.verification.auxiliary_files import (
    check_auxiliary_files,
    check_config,
    check_only_safetensors,
)
from pipeline.verification.biases import check_biases
from pipeline.verification.chunk_size import MAX_THREADS
from pipeline.verification.dequantize import layer_weights
from pipeline.verification.function_equivalence import check_preserved
from pipeline.verification.quantization_noise import QuantizationNoise, measure
from pipeline.verification.rescaling import RescalingFit, measure_rescaled
from pipeline.verification.sqnr_floors import LayerStats
from pipeline.verification.stored_part import check_scale
from pipeline.verification.tensor_accounting import TensorAccounting, account
from pipeline.verification.tensor_files import StoredTensor, TensorFiles, open_folder
from pipeline.verification.unquantized_tensors import (
    UnquantizedTensor,
    check_close,
    check_equal,
    check_rescaled,
)
from pipeline.verification.weight_format import FormOf, check_format, kv_cache_strategy
from recipes.quantization import Quantization, Rounding

# Relative to the planned size.
SIZE_TOLERANCE = 0.03
SIZE_SLACK = 4096

Advance = Callable[[int, int], None]
Layer = tuple[LayerStats, QuantizationNoise, RescalingFit | None]


@dataclass
class VerificationResult:
    """Facts about a sound variant."""

    layers: list[LayerStats] = field(default_factory=list)  # each quantized layer
    floor_db: float = 0.0  # minimum SQNR
    kept: int = 0  # number of unquantized tensors
    # Their changes of type by name, such as 'BF16 to F16'.
    altered: dict[str, str] = field(default_factory=dict)
    merged: int = 0  # heads that equal the embedding
    scales: int = 0  # number of scale tensors
    size_bytes: int = 0  # of the weight files
    planned_bytes: int = 0  # of the tensors, as planned
    # Keys of config.json with default values that the variant lacks.
    dropped_keys: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # notes for the user
    # Why the weights were not compared with the source's; empty if they were.
    not_compared: str = ""


def verify_variant(
    source: Path, variant: Path, recipe: Quantization, advance: Advance
) -> VerificationResult:
    """Compare the variant with its source and its recipe.

    Fast checks of files, headers and sizes come first, then all bytes of both.

    Args:
        advance: receives the number of compared bytes, and the total.

    Raises:
        VerificationError: for the first defective file, tensor or layer.
        CheckpointError: a file is missing, truncated or damaged.
    """
    check_only_safetensors(variant)
    form_of = check_format(variant, read_json(variant / "config.json"), recipe)
    check_auxiliary_files(source, variant)
    found = VerificationResult(dropped_keys=check_config(source, variant))
    before, after = open_folder(source), open_folder(variant)
    accounts = _accounts(before, after, form_of, recipe)
    found.size_bytes = check_smaller(source, variant)
    found.planned_bytes = check_planned_size(source, after, accounts, recipe)
    for scale in accounts.kv_scales:
        check_scale(scale, scale.floats())
    found.scales = len(accounts.kv_scales)
    WeightComparison(accounts, form_of, recipe, before, after, advance).run(found)
    return found


def _accounts(
    before: TensorFiles, after: TensorFiles, form_of: FormOf, recipe: Quantization
) -> TensorAccounting:
    wanted = recipe.kv_cache_strategy
    found = kv_cache_strategy(read_json(after.folder / "config.json"))
    if wanted != found:
        raise VerificationError(
            f"config.json has {found or 'no'} scales of the KV cache, and the recipe requires "
            f"{wanted or 'none'}",
            where=f"{after.folder / 'config.json'}, key quantization_config.kv_cache_scheme",
        )
    return account(
        before,
        after,
        form_of,
        lambda name, tensor: is_quantizable(name, tensor, recipe.ignore),
        tied=is_tied(read_json(before.folder / "config.json")),
        kv_scales=wanted is not None,
    )


def check_smaller(source: Path, variant: Path) -> int:
    """Return the size of the variant's weight files, which must be below the source's."""
    size, whole = (
        sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        for folder in (variant, source)
    )
    if size >= whole:
        raise VerificationError(
            f"the variant's weights take {size} bytes, the source's only {whole}",
            where=str(variant),
        )
    return size


def check_planned_size(
    source: Path, variant: TensorFiles, accounts: TensorAccounting, recipe: Quantization
) -> int:
    """Check the variant's size against the plan; return the planned bytes."""
    planned = estimated_bytes(source, recipe)
    extra = sum(tensor.size for tensor in accounts.kv_scales) + sum(
        head.size for head, _ in accounts.merged if head.path.parent == variant.folder
    )
    # The plan assumes 16-bit scales; those of a float32 checkpoint have 32 bits.
    extra += sum(
        tensor.size // 2
        for name, tensor in variant.tensors.items()
        if name.endswith(".weight_scale") and tensor.dtype == "F32"
    )
    if abs(variant.size - extra - planned) > SIZE_TOLERANCE * planned + SIZE_SLACK:
        raise VerificationError(
            f"the variant's tensors take {variant.size} bytes, {planned} were planned",
            where=str(variant.folder),
            hint="more or fewer layers stayed in 16 bits than the recipe requires",
        )
    return planned


class WeightComparison:
    """Comparison of all bytes in a few threads."""

    def __init__(
        self,
        accounts: TensorAccounting,
        form_of: FormOf,
        recipe: Quantization,
        before: TensorFiles,
        after: TensorFiles,
        advance: Advance,
        rounding: Rounding | None = None,
    ) -> None:
        self.accounts, self.form_of, self.recipe, self.after = accounts, form_of, recipe, after
        self.rounding = rounding or recipe.rounding
        self.rescaled = self.rounding.startswith("rescaled")
        self.where = str(after.folder)
        self.total = before.size
        self._done, self._advance, self._lock = 0, advance, threading.Lock()

    def run(self, found: VerificationResult) -> None:
        """Compare all tensors, check the results, and complete `found`."""
        accounts = self.accounts
        layers: list[Layer] = _run_in_threads(
            [partial(self._measure_layer, tensor) for tensor in accounts.quantized]
        )
        found.layers = [fact for fact, _, _ in layers]
        self._check_layers(layers, found)
        results = _run_in_threads(
            [
                *(partial(self._check_unquantized, *pair) for pair in accounts.kept),
                *(partial(self._check_merged, *pair) for pair in accounts.merged),
            ]
        )
        kept: list[UnquantizedTensor] = results[: len(accounts.kept)]
        found.kept, found.merged = len(kept), len(accounts.merged)
        found.altered = {tensor.name: tensor.altered for tensor in kept if tensor.altered}
        found.scales += len(layers)
        if self.rescaled:
            self._check_function(layers, kept)
        found.notes += _notes(found)

    def _measure_layer(self, source: StoredTensor) -> Layer:
        module = source.name.removesuffix(".weight")
        rows, columns = source.shape
        form = self.form_of(module)
        stored = layer_weights(form, module, (rows, columns), self.after.tensors)
        rescaled = measure_rescaled(source, stored) if self.rescaled else None
        noise = rescaled.noise if rescaled else measure(source, stored)
        lossless = noise.sqnr_db == float("inf")
        fact = LayerStats(
            module,
            str(form),
            rows,
            columns,
            None if lossless else noise.sqnr_db,
            self.recipe.floor_of(module, form),
        )
        self._note_compared(source)
        return fact, noise, rescaled

    def _check_merged(self, head: StoredTensor, embedding: StoredTensor) -> None:
        try:
            if head.shape != embedding.shape:
                raise VerificationError("their shapes differ")
            if head.dtype == embedding.dtype:
                check_equal(head, embedding)
            else:
                check_close(head, embedding, exact=False)
        except VerificationError as error:
            raise VerificationError(
                f"'{head.name}' is not the embedding '{embedding.name}', "
                "but config.json ties the two",
                where=str(head.path),
                hint="set tie_word_embeddings to false if they should differ",
            ) from error

    def _check_unquantized(self, source: StoredTensor, variant: StoredTensor) -> UnquantizedTensor:
        if self.rescaled:
            found = check_rescaled(source, variant, rounds=not self.recipe.keeps_types)
        elif source.dtype != variant.dtype and not self.recipe.keeps_types:
            found = check_close(source, variant, exact=False)
        else:
            found = check_equal(source, variant)
        self._note_compared(source)
        return found

    def _note_compared(self, tensor: StoredTensor) -> None:
        with self._lock:
            self._done = min(self.total, self._done + tensor.size)
            self._advance(self._done, self.total)

    def _check_layers(self, layers: Sequence[Layer], found: VerificationResult) -> None:
        for floor in {fact.floor_db for fact in found.layers}:
            alike = [fact for fact in found.layers if fact.floor_db == floor]
            sqnr_floors.check_floor(alike, floor, self.where)
        found.floor_db = min(fact.floor_db for fact in found.layers)
        far = sqnr_floors.outliers(found.layers)
        for fact, middle in far:
            words = (
                f"'{fact.name}' has an SQNR of {fact.sqnr_db:.1f} dB, and layers of its kind have "
                f"{middle:.1f} dB in the median"
            )
            if self.rounding == "nearest":
                raise VerificationError(
                    words,
                    where=self.where,
                    hint="rounding to nearest treats all layers alike: check how it was written",
                )
            found.notes.append(words)
        for fact, noise, _ in layers:
            sqnr_floors.check_offset(fact, noise.noise, noise.offset, self.where)
            sqnr_floors.check_pieces(fact, noise.damaged, self.rounding, self.where)

    def _check_function(self, layers: Sequence[Layer], kept: Sequence[UnquantizedTensor]) -> None:
        fitted = {fact.name: rescaled for fact, _, rescaled in layers if rescaled}
        fitted |= {
            each.name.removesuffix(".weight"): each.rescaled for each in kept if each.rescaled
        }
        norms = {
            tensor.name.removesuffix(".weight"): tensor.weights
            for tensor in kept
            if tensor.weights and tensor.name.endswith(".weight")
        }
        factors = check_preserved(fitted, norms, self.where)
        others = [each for each in kept if each.weights and not each.name.endswith(".weight")]
        check_biases(fitted, factors, others, self.where)


def _run_in_threads(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return results in order; raise the first error in that order."""
    threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    executor = ThreadPoolExecutor(threads)
    try:
        futures: list[Future[Any]] = [executor.submit(task) for task in tasks]
        return [future.result() for future in futures]
    finally:
        executor.shutdown(cancel_futures=True)


def _notes(found: VerificationResult) -> list[str]:
    worst = sqnr_floors.worst_layers(found.layers)
    middle = sqnr_floors.median_db(found.layers)
    notes = []
    if worst and middle is not None:
        named = ", ".join(f"{fact.name} {fact.sqnr_db:.1f}" for fact in worst)
        notes.append(
            f"SQNR of {len(found.layers)} layers: median {middle:.1f} dB "
            f"(floor {found.floor_db:.0f}); worst: {named}"
        )
    if found.altered:
        name, change = next(iter(found.altered.items()))
        notes.append(
            f"{len(found.altered)} kept tensors are stored differently: {name} {change}, ..."
        )
    return notes
