"""Casts rows of a weight to FP8 with the same bits as llm-compressor's oneshot.

compressed-tensors' functions define the result. On a CPU they take six slow passes over memory.
Rows of ordinary numbers take a shorter way with provably the same result
(docs/dev/quantizer-notes.md); all others, and all on an accelerator, take the library's.
"""

from __future__ import annotations

from typing import Any

from pipeline.workers.fp8_stream.layout import BLOCK, Chunk, scale_shape

TORCH_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
BF16_SIGN = -0x8000  # as a signed 16-bit number; alone it is minus zero
BF16_MAGNITUDE = 0x7FFF
BF16_INFINITY = 0x7F80  # the magnitudes from here up are infinite or no numbers
# Above 448 and up to here, rounding to the nearest FP8 number gives 448, as clamping does.
SAFE_QUOTIENT = 456.0


class Caster:
    """Casts pieces up to a number of bytes, in its own buffers; one per thread."""

    def __init__(self, scheme: str, device: str, piece_bytes: int) -> None:
        import torch
        from compressed_tensors.quantization import preset_name_to_scheme

        self._torch = torch
        self._scheme = scheme
        self._device = device
        self._arguments = preset_name_to_scheme(scheme, ["Linear"]).weights
        self._input = bytearray(piece_bytes)
        # Half of the bytes at most: no source type is narrower than 16 bits.
        self._output = bytearray(piece_bytes // 2)
        # A scale is as wide as a source element, and a row or block has one element at least.
        self._scales = bytearray(piece_bytes)
        self._magnitudes = torch.empty(piece_bytes // 2, dtype=torch.int16)
        self._quotients = torch.empty(piece_bytes // 2, dtype=torch.bfloat16)

    def room(self, piece: Chunk) -> memoryview:
        """Buffer to read the piece's bytes into."""
        return memoryview(self._input)[: piece.size]

    def cast(self, piece: Chunk) -> tuple[memoryview, memoryview]:
        """Return the FP8 bytes and the scales' bytes of the buffer, valid until the next cast."""
        torch = self._torch
        elements = piece.rows * piece.columns
        dtype = getattr(torch, TORCH_DTYPES[piece.dtype])
        weight = torch.frombuffer(self._input, dtype=dtype, count=elements)
        weight = weight.view(piece.rows, piece.columns)
        target = torch.frombuffer(self._output, dtype=torch.float8_e4m3fn, count=elements)
        target = target.view(piece.rows, piece.columns)
        scale = self._cast_ordinary(weight, target)
        if scale is None:
            scale = self._cast_as_library(weight, target)
        count = scale.numel()
        torch.frombuffer(self._scales, dtype=dtype, count=count).copy_(scale.reshape(-1))
        size = count * scale.element_size()
        return memoryview(self._output)[:elements], memoryview(self._scales)[:size]

    def _cast_ordinary(self, weight: Any, target: Any) -> Any:
        """Cast bfloat16 rows on the CPU into `target`.

        Return the scales, or None if not ordinary.
        """
        torch = self._torch
        groups = self._groups(weight)
        if self._device != "cpu" or weight.dtype != torch.bfloat16 or groups is None:
            return None
        bits = groups.view(torch.int16)
        magnitudes = self._magnitudes[: weight.numel()].view(groups.shape)
        torch.bitwise_and(bits, BF16_MAGNITUDE, out=magnitudes)
        # Magnitudes of floats are in the order of their bits, and integers are compared faster.
        largest = torch.amax(magnitudes, dim=(1, 3))
        if int(largest.max()) >= BF16_INFINITY:
            return None
        largest = largest.view(torch.bfloat16)
        scale, _ = self._scale_and_zero_point(largest, largest)
        if float((largest / scale).max()) > SAFE_QUOTIENT:
            return None  # a scale so small that its own rounding counts: clamping is needed
        quotients = self._quotients[: weight.numel()].view(groups.shape)
        torch.div(groups, scale[:, None, :, None], out=quotients)
        # The library adds a zero point of 0: it turns minus zero into zero, and nothing else.
        if int(bits.min()) == BF16_SIGN or float(scale.max()) > 1:
            quotients.add_(0)
        target.view(groups.shape).copy_(quotients)
        return scale

    def _groups(self, weight: Any) -> Any:
        """Return the weight as (groups of rows, rows, groups of columns, columns); None if cut."""
        rows, columns = weight.shape
        if self._scheme == "FP8_DYNAMIC":
            return weight.view(rows, 1, 1, columns)
        if rows % BLOCK or columns % BLOCK:
            return None
        return weight.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)

    def _cast_as_library(self, weight: Any, target: Any) -> Any:
        """Cast by the library's functions into `target`; return the scales."""
        from compressed_tensors.quantization.lifecycle.forward import quantize
        from compressed_tensors.quantization.utils import maybe_pad_tensor_for_block_quant

        torch = self._torch
        weight = weight.to(self._device)
        rows, columns = weight.shape
        grouped = weight.view(rows, 1, 1, columns)
        if self._scheme == "FP8_BLOCK":
            weight = maybe_pad_tensor_for_block_quant(weight, (BLOCK, BLOCK))
            down, across = scale_shape(self._scheme, (rows, columns))
            grouped = weight.view(down, BLOCK, across, BLOCK)
        smallest = torch.amin(grouped, dim=(1, 3))
        largest = torch.amax(grouped, dim=(1, 3))
        scale, zero_point = self._scale_and_zero_point(smallest, largest)
        quantized = quantize(
            x=weight,
            scale=scale,
            zero_point=zero_point,
            args=self._arguments,
            dtype=self._arguments.pytorch_dtype(),
        )
        target.copy_(quantized[:rows, :columns])
        return scale.to("cpu")

    def _scale_and_zero_point(self, smallest: Any, largest: Any) -> Any:
        from compressed_tensors.quantization.utils import calculate_qparams

        return calculate_qparams(smallest, largest, self._arguments)
