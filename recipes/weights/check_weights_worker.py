"""Worker: compares a variant's numbers with its source's, by compressed-tensors' dequantizers.

If columns were rescaled, `compare_outputs` runs both models instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from prepare.errors import VerificationError
from prepare.events import Progress
from recipes.checkpoints.module_kind import block_name, is_head
from recipes.weight_format import PLAIN, WeightFormat
from recipes.weights.accounting import EMBEDDING, StoredTensor, WeightComparison, open_folder
from recipes.weights.layouts import dequantize, has_numbers, scale_of

ROW_STEP = 128  # a multiple of all packing
CHUNK_ELEMENTS = 2**21  # 8 MB in float32
PIECE_COLUMNS = 128
# Noise above this share of a piece's energy is no rounding, which has a few hundredths at 4 bits.
DAMAGED_OVER = 0.5
FAINT_ROW = 1e-3  # share of the mean row's energy, below which a row may be rounded to zero
MAX_LISTED = 20
# Relative and absolute error of conversion from bf16 or float32 to float16 or bf16. The absolute
# part is float16's smallest normal number.
ROUNDED = 2.0**-8
FLUSHED = 2.0**-14
MAX_THREADS = 16  # more wait for memory
HINT = "quantize again; what changed it is in the worker.log, if anywhere"


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Compare all numbers.

    `spec` has comparison (a `WeightComparison`), texts, trust_remote_code. Returns layers: name and
    measurements of each `LayerCheck`; altered: changes of type by name; rescaled; outputs: of
    `compare_outputs`, or None.
    """
    torch.set_num_threads(min(MAX_THREADS, torch.get_num_threads()))
    comparison = WeightComparison.from_plain(spec["comparison"])
    numbers = Numbers(comparison, progress)
    for name in comparison.scales:
        check_scale(numbers.after[name], numbers.read(numbers.after[name]))
    numbers.check_merged()
    rescaled, altered = numbers.check_kept()
    layers = [
        numbers.measure(module, form, rescaled=rescaled)
        for module, form in comparison.layers.items()
        if has_numbers(form)
    ]
    outputs = None
    if rescaled:
        from recipes.weights.compare_outputs import compare_outputs

        outputs = compare_outputs(comparison, spec, progress, output)
    return {"layers": layers, "altered": altered, "rescaled": rescaled, "outputs": outputs}


class Numbers:
    """Both checkpoints' numbers."""

    def __init__(self, comparison: WeightComparison, progress: Progress) -> None:
        self.comparison = comparison
        self.progress = progress
        self.before = open_folder(Path(comparison.source)).tensors
        self.after = open_folder(Path(comparison.variant)).tensors
        self.total = sum(tensor.size for tensor in self.before.values())
        self.done = 0
        self.opened: dict[Path, Any] = {}

    def read(self, tensor: StoredTensor, *where: slice) -> Any:
        """Return a tensor, or a part, in its own type."""
        if tensor.path not in self.opened:
            self.opened[tensor.path] = safe_open(tensor.path, framework="pt")
        file = self.opened[tensor.path]
        if not tensor.shape or not where:
            return file.get_tensor(tensor.name)
        return file.get_slice(tensor.name)[where]

    def advance(self, tensor: StoredTensor) -> None:
        self.done = min(self.total, self.done + tensor.size)
        self.progress.advance("check_weights", self.done, self.total, "bytes")

    def check_merged(self) -> None:
        """Check heads that are tied to the embedding."""
        for side, name, embedding in self.comparison.merged:
            head = (self.before if side == "source" else self.after)[name]
            table = self.before[embedding]
            try:
                if head.shape != table.shape:
                    raise VerificationError("their shapes differ")
                self.compare(table, head, rounds=True)
            except VerificationError as error:
                raise VerificationError(
                    f"'{name}' is not the embedding '{embedding}', but config.json ties the two",
                    where=str(head.path),
                    hint="set tie_word_embeddings to false if they should differ",
                ) from error

    def check_kept(self) -> tuple[bool, dict[str, str]]:
        """Check unquantized tensors.

        Returns whether columns were rescaled, and how each altered tensor is stored.
        """
        asked = self.comparison.rescaled
        rescaled = bool(asked)
        altered: dict[str, str] = {}
        for name in self.comparison.kept:
            source = self.before[name]
            variant = self.after[name]
            # Rows of unused tokens in a table may be NaN.
            is_table = EMBEDDING.fullmatch(name) or is_head(name)
            if not is_table and source.dtype in ("BF16", "F16", "F32"):
                for rows in chunks(source):
                    check_finite(source, self.read(source, rows), of_source=True)
            vector = len(source.shape) == 1
            try:
                rounds = self.comparison.rounds or (asked is True and vector)
                change = self.compare(source, variant, rounds=rounds)
            except VerificationError:
                # Scales may have been folded into norms, biases and routers.
                if asked is False or not block_name(name) or len(source.shape) > 2:
                    raise
                check_finite(variant, values := self.read(variant))
                if not values.any() and self.read(source).double().abs().max() > FLUSHED:
                    raise
                rescaled |= vector and name.endswith(".weight")
                if asked is None and not vector and not rescaled:
                    raise
                change = f"{source.dtype} to {variant.dtype}" * (source.dtype != variant.dtype)
            altered |= {name: change} if change else {}
            self.advance(source)
        return rescaled, altered

    def compare(self, source: StoredTensor, variant: StoredTensor, *, rounds: bool) -> str:
        """Check that a tensor has the source's values; return its change of type, if any.

        A norm stored minus one (Gemma) may have been rounded as 1 + w by llm-compressor.
        """
        same_type = source.dtype == variant.dtype
        change = f"changed from {source.dtype} to {variant.dtype}, and its values differ"
        altered = "" if same_type else f"{source.dtype} to {variant.dtype}"
        for rows in chunks(source):
            before = self.read(source, rows)
            after = self.read(variant, rows)
            if same_type and torch.equal(before.view(torch.uint8), after.view(torch.uint8)):
                continue
            if same_type and len(source.shape) == 1 and torch.equal((1 + before) - 1, after):
                altered = f"{source.dtype}, rounded as 1 + w"
                continue
            before = before.double()
            after = after.double()
            same = (before == after) | (before.isnan() & after.isnan())
            if rounds and not same_type:
                same |= (before - after).abs() <= before.abs() * ROUNDED + FLUSHED
            if same_type or not same.all():
                raise VerificationError(
                    f"'{variant.name}' {'differs' if same_type else change} from the source's"
                    + ", and the recipe does not change it" * same_type,
                    where=str(variant.path),
                    hint=HINT,
                )
        return altered

    def measure(self, module: str, form: WeightFormat, *, rescaled: bool) -> dict[str, Any]:
        """Return name, shape, and rounding noise unless it was rescaled."""
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
            check_finite(source, before, of_source=True)
            # The scales of an expert that is all zeros are arbitrary.
            if before.any():
                is_empty = False
                self.check_scales(own, form, rows, source)
            if rescaled:
                continue

            def part(suffix: str, *where: slice) -> Any:
                return self.read(own[suffix], *where)

            after = dequantize(form, own, part, rows, source.shape)
            stored = next(own[s] for s in ("weight", "weight_packed", "qweight") if s in own)
            check_finite(stored, after)
            noise.add(before, after)
        if "weight_shape" in own:
            stored_shape = self.read(own["weight_shape"]).tolist()
            if stored_shape != list(source.shape):
                raise VerificationError(
                    f"'{module}.weight_shape' has {stored_shape}, the source's shape is "
                    f"{list(source.shape)}",
                    where=str(own["weight_shape"].path),
                )
        for suffix in ("input_scale", "input_global_scale"):
            if suffix in own and not is_empty:
                check_scale(own[suffix], self.read(own[suffix]))
        self.advance(source)
        height, width = source.shape
        return {"name": module, "rows": height, "columns": width, **noise.found()}

    def check_scales(
        self, own: dict[str, StoredTensor], form: WeightFormat, rows: slice, source: StoredTensor
    ) -> None:
        if form.name == PLAIN:
            return
        for suffix in (scale_of(form), "scales", "weight_global_scale", "weight_scale_2"):
            tensor = own.get(suffix)
            if tensor is None or tensor.dtype == "U8":
                continue
            by_row = bool(tensor.shape) and tensor.shape[0] == source.shape[0]
            where = (slice(None), rows) if suffix == "scales" else (rows,) if by_row else ()
            check_scale(tensor, self.read(tensor, *where), zero_allowed=tensor.dtype == "F8_E4M3")


class Noise:
    """Sums over a layer's rows."""

    def __init__(self) -> None:
        self.signal = self.noise = 0.0
        self.rows = 0
        self.suspects: list[tuple[int, int, float]] = []

    def add(self, before: Any, after: Any) -> None:
        """Add the next rows (rows x columns, float32), by pieces of a row.

        A piece is the largest divisor of a row up to 128, or else the whole row.
        """
        columns = before.shape[1]
        width = max(n for n in range(1, min(columns, PIECE_COLUMNS) + 1) if columns % n == 0)
        width = width if width >= PIECE_COLUMNS // 8 else columns
        signal, noise = (
            values.unflatten(1, (-1, width)).double().square().sum(2)
            for values in (before, after - before)
        )
        row_signal = signal.sum(1, keepdim=True)
        bad = noise > DAMAGED_OVER * signal.maximum(row_signal / signal.shape[1])
        for row, piece in bad.nonzero().tolist():
            self.suspects.append((self.rows + row, piece * width, float(row_signal[row, 0])))
        self.signal += float(signal.sum())
        self.noise += float(noise.sum())
        self.rows += len(before)

    def found(self) -> dict[str, Any]:
        """Return the last fields of `LayerCheck`."""
        faint = FAINT_ROW * self.signal / max(1, self.rows)
        damaged = [(row, column) for row, column, signal in self.suspects if signal >= faint]
        columns = [column for _, column in damaged]
        ratio = self.signal / self.noise if self.noise else math.inf
        sqnr = 10 * math.log10(ratio) if ratio else -math.inf
        return {
            "sqnr_db": None if math.isinf(sqnr) and sqnr > 0 else max(sqnr, -999.0),
            "damaged": damaged[:MAX_LISTED],
            "most_in_a_column": max((columns.count(number) for number in set(columns)), default=0),
            "count": len(damaged),
        }


def chunks(tensor: StoredTensor, block: int = 1) -> Iterator[slice]:
    """Yield about two million weights: whole blocks, or parts of one."""
    rows = tensor.shape[0] if tensor.shape else 1
    columns = math.prod(tensor.shape[1:])
    step = max(1, CHUNK_ELEMENTS // max(1, columns) // ROW_STEP) * ROW_STEP
    within = min(block, max(rows, 1))
    step = step // within * within if within <= step else step
    for first in range(0, rows, max(within, step)):
        last = min(rows, first + max(within, step))
        for begin in range(first, last, step):
            yield slice(begin, min(last, begin + step))


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


def check_finite(tensor: StoredTensor, values: Any, *, of_source: bool = False) -> None:
    """Raise VerificationError for NaN or infinity."""
    if not values.isfinite().all():
        whose = "the source's tensor " if of_source else ""
        raise VerificationError(
            f"{whose}'{tensor.name}' has values that are not finite",
            where=str(tensor.path),
            hint="quantization cannot fix that; use another checkpoint" if of_source else HINT,
        )
