"""Worker: compares a variant's numbers with its source's, by compressed-tensors' dequantizers.

Rows are read a few at a time, so memory does not grow with the model. Where columns were rescaled,
no single weight can be compared, and `compare_outputs` runs both models instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from pipeline.core.errors import VerificationError
from pipeline.core.events import Progress
from pipeline.inspection.linear_layers import is_head
from pipeline.verification.comparison import LayerNoise, WeightComparison, block_name
from pipeline.verification.stored_parts import scale_of
from pipeline.verification.tensor_accounting import EMBEDDING
from pipeline.verification.tensor_files import StoredTensor, TensorFiles, open_folder
from pipeline.workers.dequantized_layer import Parts, dequantize
from recipes.weight_format import PLAIN, WeightFormat

ROW_STEP = 128  # a multiple of all packing
CHUNK_ELEMENTS = 2**21  # 8 MB in float32
PIECE_COLUMNS = 128
# Noise above this share of a piece's energy is no rounding: that to 4 bits has a few hundredths.
DAMAGED_OVER = 0.5
FAINT_ROW = 1e-3  # share of the mean row's energy, below which a row may be rounded to zero
MAX_LISTED = 20
# Relative and absolute error of conversion from bf16 or float32 to float16 or bf16. The absolute
# part is float16's smallest normal number, below which precision drops.
ROUNDED, FLUSHED = 2.0**-8, 2.0**-14
THREADS = 4
HINT = "quantize again; what changed it is in the worker.log, if anywhere"


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Compare all numbers.

    Args:
        spec: comparison (a `WeightComparison`), texts, trust_remote_code (of `compare_outputs`).

    Returns:
        layers: each `LayerNoise`; altered: changes of type by name; rescaled: whether columns were;
        outputs: of `compare_outputs`, None if columns were not rescaled.

    Raises:
        VerificationError: names the first wrong tensor and its file.
    """
    torch.set_num_threads(min(THREADS, torch.get_num_threads()))
    comparison = WeightComparison.from_plain(spec["comparison"])
    numbers = Numbers(comparison, progress)
    for name in comparison.scales:
        check_scale(numbers.after[name], numbers.read(numbers.after[name]))
    numbers.check_merged()
    rescaled, altered = numbers.check_kept()
    layers = [
        numbers.measure(module, form, rescaled=rescaled)
        for module, form in comparison.layers.items()
    ]
    outputs = None
    if rescaled:
        from pipeline.workers.compare_outputs import compare_outputs

        outputs = compare_outputs(comparison, spec, progress, output)
    return {
        "layers": [asdict(layer) for layer in layers],
        "altered": altered,
        "rescaled": rescaled,
        "outputs": outputs,
    }


class Numbers:
    """Both checkpoints' numbers."""

    def __init__(self, comparison: WeightComparison, progress: Progress) -> None:
        self.comparison, self.progress = comparison, progress
        self.source: TensorFiles = open_folder(Path(comparison.source))
        self.before = self.source.tensors
        self.after = open_folder(Path(comparison.variant)).tensors
        self.done = 0
        self.opened: dict[Path, Any] = {}

    def read(self, tensor: StoredTensor, *where: slice) -> Any:
        """Return a tensor, or a part of it, in its own type."""
        if tensor.path not in self.opened:
            self.opened[tensor.path] = safe_open(tensor.path, framework="pt")
        file = self.opened[tensor.path]
        if not tensor.shape or not where:
            return file.get_tensor(tensor.name)
        return file.get_slice(tensor.name)[where]

    def advance(self, tensor: StoredTensor) -> None:
        """Report that a source's tensor was compared."""
        self.done = min(self.source.size, self.done + tensor.size)
        self.progress.advance("check_weights", self.done, self.source.size, "bytes")

    def check_merged(self) -> None:
        """Check heads that config.json ties to the embedding."""
        for side, name, embedding in self.comparison.merged:
            head = (self.before if side == "source" else self.after)[name]
            try:
                if head.shape != self.before[embedding].shape:
                    raise VerificationError("their shapes differ")
                self.compare(self.before[embedding], head, rounds=True)
            except VerificationError as error:
                raise VerificationError(
                    f"'{name}' is not the embedding '{embedding}', but config.json ties the two",
                    where=str(head.path),
                    hint="set tie_word_embeddings to false if they should differ",
                ) from error

    def check_kept(self) -> tuple[bool, dict[str, str]]:
        """Check unquantized tensors.

        Returns:
            whether the layers' columns were rescaled; how each altered tensor is stored otherwise.
        """
        rescaled = bool(self.comparison.rescaled)
        pairs = [(self.before[name], self.after[name]) for name in self.comparison.kept]
        altered: dict[str, str] = {}
        for source, variant in pairs:
            self.check_source(source)
            inside, vector = block_name(source.name), len(source.shape) == 1
            free = self.comparison.rescaled is not False and inside and len(source.shape) < 3
            try:
                rounds = self.comparison.rounds or (self.comparison.rescaled is True and vector)
                change = self.compare(source, variant, rounds=rounds)
            except VerificationError:
                if not free:
                    raise
                self.check_rescaled(source, variant)
                rescaled |= vector and source.name.endswith(".weight")
                if self.comparison.rescaled is None and not vector and not rescaled:
                    raise
                change = ""
            if not change and source.dtype != variant.dtype:
                change = f"{source.dtype} to {variant.dtype}"
            altered |= {source.name: change} if change else {}
            self.advance(source)
        return rescaled, altered

    def check_source(self, source: StoredTensor) -> None:
        """Check that a source's tensor is finite; rows of unused tokens may be NaN."""
        is_table = EMBEDDING.fullmatch(source.name) or is_head(source.name)
        if is_table or source.dtype not in ("BF16", "F16", "F32"):
            return
        for rows in chunks(source):
            if not self.read(source, rows).isfinite().all():
                raise not_finite_source(source)

    def compare(self, source: StoredTensor, variant: StoredTensor, *, rounds: bool) -> str:
        """Check that a tensor has the source's values; return its change of type, if any.

        A norm stored minus one (Gemma) may have been rounded as 1 + w: llm-compressor calibrates
        with a plain norm (`norm_calibration_context`).
        """
        same_type = source.dtype == variant.dtype
        altered = "" if same_type else f"{source.dtype} to {variant.dtype}"
        for rows in chunks(source):
            before, after = self.read(source, rows), self.read(variant, rows)
            if same_type and same_bytes(before, after):
                continue
            if same_type and len(source.shape) == 1 and torch.equal((1 + before) - 1, after):
                altered = f"{source.dtype}, rounded as 1 + w"
                continue
            before, after = before.double(), after.double()
            same = (before == after) | (before.isnan() & after.isnan())
            if rounds and not same_type:
                same |= (before - after).abs() <= before.abs() * ROUNDED + FLUSHED
            if same_type or not same.all():
                raise differs(source, variant)
        return altered

    def check_rescaled(self, source: StoredTensor, variant: StoredTensor) -> None:
        """Check a norm, bias or router that scales may have been folded into."""
        before, after = self.read(source).double(), self.read(variant).double()
        if not after.isfinite().all() or (before.abs().max() > FLUSHED and not after.any()):
            what = "no finite numbers" if not after.isfinite().all() else "only zeros"
            raise VerificationError(
                f"'{variant.name}' holds {what}", where=str(variant.path), hint=HINT
            )

    def measure(self, module: str, form: WeightFormat, *, rescaled: bool) -> LayerNoise:
        """Return a layer's rounding noise, unless it was rescaled.

        Raises:
            VerificationError: weights or scales are no finite numbers.
        """
        source = self.before[f"{module}.weight"]
        own = {
            name.removeprefix(f"{module}."): tensor
            for name, tensor in self.after.items()
            if name.rpartition(".")[0] == module
        }
        noise = Noise()
        is_empty = True
        for rows in chunks(source, form.block[0] if form.block else 1):
            before = self.read(source, rows).float()
            if not before.isfinite().all():
                raise not_finite_source(source)
            empty = not before.any()
            is_empty &= empty
            parts = Parts(own, lambda tensor, *where: self.read(tensor, *where))
            # The scales of an expert that is all zeros are arbitrary.
            if not empty:
                self.check_scales(own, form, rows, source)
            if rescaled:
                continue
            after = dequantize(form, parts, rows, source.shape)
            if not after.isfinite().all():
                raise not_finite(own)
            noise.add(before, after)
        if "weight_shape" in own:
            found = self.read(own["weight_shape"]).tolist()
            if found != list(source.shape):
                raise VerificationError(
                    f"'{module}.weight_shape' has {found}, the source's shape is "
                    f"{list(source.shape)}",
                    where=str(own["weight_shape"].path),
                )
        if not is_empty:
            for suffix in ("input_scale", "input_global_scale"):
                if suffix in own:
                    check_scale(own[suffix], self.read(own[suffix]))
        self.advance(source)
        return noise.of(module)

    def check_scales(
        self, own: dict[str, StoredTensor], form: WeightFormat, rows: slice, source: StoredTensor
    ) -> None:
        """Check the scales of these rows."""
        if form.name == PLAIN:
            return
        for suffix in (scale_of(form), "scales", "weight_global_scale", "weight_scale_2"):
            tensor = own.get(suffix)
            if tensor is None or tensor.dtype == "U8":
                continue
            if suffix == "scales":
                values = self.read(tensor, slice(None), rows)
            elif tensor.shape and tensor.shape[0] == source.shape[0]:
                values = self.read(tensor, rows)
            else:
                values = self.read(tensor)
            check_scale(tensor, values, zero_allowed=tensor.dtype == "F8_E4M3")


class Noise:
    """Sums over a layer's rows."""

    def __init__(self) -> None:
        self.signal = self.noise = 0.0
        self.rows = 0
        self.suspects: list[tuple[int, int, float]] = []

    def add(self, before: Any, after: Any) -> None:
        """Add the next rows (rows x columns, float32)."""
        width = piece_columns(before.shape[1])
        signal, noise = (
            each.unflatten(1, (-1, width)).double().square().sum(2)
            for each in (before, after - before)
        )
        row_signal = signal.sum(1, keepdim=True)
        bad = noise > DAMAGED_OVER * signal.maximum(row_signal / signal.shape[1])
        for row, piece in bad.nonzero().tolist():
            self.suspects.append((self.rows + row, piece * width, float(row_signal[row, 0])))
        self.signal += float(signal.sum())
        self.noise += float(noise.sum())
        self.rows += len(before)

    def of(self, module: str) -> LayerNoise:
        """Return the layer's result."""
        faint = FAINT_ROW * self.signal / max(1, self.rows)
        damaged = [(row, column) for row, column, signal in self.suspects if signal >= faint]
        columns = [column for _, column in damaged]
        ratio = self.signal / self.noise if self.noise else math.inf
        sqnr = 10 * math.log10(ratio) if ratio else -math.inf
        return LayerNoise(
            module,
            None if math.isinf(sqnr) and sqnr > 0 else max(sqnr, -999.0),
            tuple(damaged[:MAX_LISTED]),
            max((columns.count(column) for column in set(columns)), default=0),
            len(damaged),
        )


def piece_columns(columns: int) -> int:
    """Return the largest divisor of a row up to 128; the whole row if that is too small."""
    width = max(n for n in range(1, min(columns, PIECE_COLUMNS) + 1) if columns % n == 0)
    return width if width >= PIECE_COLUMNS // 8 else columns


def chunks(tensor: StoredTensor, block: int = 1) -> Iterator[slice]:
    """Yield ranges of rows with about two million weights: whole blocks, or parts of one block."""
    if not tensor.shape:
        yield slice(0, 1)
        return
    rows = tensor.shape[0]
    columns = math.prod(tensor.shape[1:])
    step = max(1, CHUNK_ELEMENTS // max(1, columns) // ROW_STEP) * ROW_STEP
    within = min(block, max(rows, 1))
    step = step // within * within if within <= step else step
    for first in range(0, rows, max(within, step)):
        last = min(rows, first + max(within, step))
        for begin in range(first, last, step):
            yield slice(begin, min(last, begin + step))


def same_bytes(before: Any, after: Any) -> bool:
    """Return whether two tensors of one type have the same bits, NaN included."""
    return bool(torch.equal(before.view(torch.uint8), after.view(torch.uint8)))


def check_scale(tensor: StoredTensor, values: Any, *, zero_allowed: bool = False) -> None:
    """Raise VerificationError unless all are finite and positive."""
    values = values.float()
    finite = bool(values.isfinite().all())
    if finite and bool(((values >= 0) if zero_allowed else (values > 0)).all()):
        return
    raise VerificationError(
        f"'{tensor.name}' has a scale that is {'not above zero' if finite else 'not finite'}",
        where=str(tensor.path),
        hint="the calibration overflowed, or the source has such weights; check this layer",
    )


def not_finite_source(source: StoredTensor) -> VerificationError:
    """Return the error of a source's numbers."""
    return VerificationError(
        f"the source's tensor '{source.name}' has values that are not finite",
        where=str(source.path),
        hint="quantization cannot fix that; use another checkpoint",
    )


def not_finite(own: dict[str, StoredTensor]) -> VerificationError:
    """Return the error of a layer's numbers."""
    tensor = next(own[s] for s in ("weight", "weight_packed", "qweight") if s in own)
    return VerificationError(
        f"'{tensor.name}' has values that are not finite", where=str(tensor.path), hint=HINT
    )


def differs(source: StoredTensor, variant: StoredTensor) -> VerificationError:
    """Return the error of an unquantized tensor."""
    if source.dtype == variant.dtype:
        words = f"'{variant.name}' differs from the source's, and the recipe does not change it"
    else:
        words = (
            f"'{variant.name}' changed from {source.dtype} to {variant.dtype}, and its values "
            "differ from the source's"
        )
    return VerificationError(words, where=str(variant.path), hint=HINT)
