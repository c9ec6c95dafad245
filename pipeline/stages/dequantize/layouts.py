"""Conversion to 16 bits by verification's readers, of layouts that compressed-tensors lacks.

These are GPTQ's, ModelOpt's and FP8 with a scale for each matrix.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline.checkpoint.folder import AUXILIARY_FILES, matches
from pipeline.checkpoint.safetensors_header import TensorEntry, header_bytes
from pipeline.checkpoint.source_format import QUANTIZATION_KEYS
from pipeline.checkpoint.weight_files import INDEX, read_json
from pipeline.inspection.linear_layers import is_tied
from pipeline.verification.adopted import adopted_formats, read_quantization
from pipeline.verification.chunk_size import CHUNK_ELEMENTS, ROW_STEP
from pipeline.verification.dequantize import layer_weights
from pipeline.verification.number_types import round_to
from pipeline.verification.tensor_accounting import account
from pipeline.verification.tensor_files import StoredTensor, TensorFiles, open_folder
from recipes.weight_format import WeightFormat

FILE_BYTES = 4 * 10**9


def convert(
    source: Path,
    output: Path,
    expected: Mapping[str, TensorEntry],
    advance: Callable[[int, int], None],
) -> None:
    """Write the checkpoint in bf16.

    Args:
        expected: the tensors that the source's headers imply.
        advance: receives the number of written bytes, and the total.

    Raises:
        VerificationError: tensors are missing or unexpected, or a scale is no number above zero.
    """
    released = open_folder(source)
    form_of = adopted_formats(read_quantization(source), str(source / "config.json")).of_quantized
    wanted = {
        name: StoredTensor(name, entry.dtype, entry.shape, source, 0)
        for name, entry in expected.items()
    }
    accounts = account(
        TensorFiles(source, wanted),
        released,
        form_of,
        lambda name, entry: (
            name not in released.tensors or released.tensors[name].dtype != entry.dtype
        ),
        tied=is_tied(read_json(source / "config.json")),
        kv_scales=None,
    )
    files = split([*accounts.quantized, *(tensor for _, tensor in accounts.kept)])
    total, done = sum(tensor.size for file in files for tensor in file), 0
    quantized = {tensor.name for tensor in accounts.quantized}
    placed: dict[str, str] = {}
    for number, tensors in enumerate(files, start=1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        placed |= {tensor.name: name for tensor in tensors}
        with (output / name).open("wb") as file:
            file.write(head(tensors))
            for tensor in tensors:
                is_quantized = tensor.name in quantized
                form = form_of(tensor.name.removesuffix(".weight"))
                blocks = rounded(tensor, form, released) if is_quantized else tensor.blocks()
                file.writelines(blocks)
                done += tensor.size
                advance(done, total)
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    (output / INDEX).write_text(json.dumps(index))
    copy_others(source, output)


def split(tensors: list[StoredTensor]) -> list[list[StoredTensor]]:
    """Distribute tensors over files, in order."""
    files: list[list[StoredTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if files[-1] and size + tensor.size > FILE_BYTES:
            files.append([])
            size = 0
        files[-1].append(tensor)
        size += tensor.size
    return files


def head(tensors: list[StoredTensor]) -> bytes:
    """Return a file up to its data."""
    entries, begin = {}, 0
    for tensor in tensors:
        entries[tensor.name] = (tensor.dtype, tensor.shape, (begin, begin + tensor.size))
        begin += tensor.size
    return header_bytes(entries)


def rounded(tensor: StoredTensor, form: WeightFormat, released: TensorFiles) -> Iterator[bytes]:
    """Yield a matrix in bf16, some rows at a time."""
    rows, columns = tensor.shape
    layer = layer_weights(
        form, tensor.name.removesuffix(".weight"), (rows, columns), released.tensors
    )
    step = max(1, CHUNK_ELEMENTS // columns // ROW_STEP) * ROW_STEP
    for begin in range(0, rows, step):
        values = round_to(layer.rows(begin, min(rows, begin + step)), "BF16")
        yield (values.view("<u4") >> 16).astype("<u2").tobytes()


def copy_others(source: Path, output: Path) -> None:
    """Copy the other files; config.json without the description of quantized weights."""
    for file in source.iterdir():
        if matches(file.name, (*AUXILIARY_FILES, "*.py")):
            shutil.copyfile(file, output / file.name)
    config = read_json(source / "config.json")
    for level in (config, config.get("text_config")):
        if isinstance(level, dict):
            for key in QUANTIZATION_KEYS:
                level.pop(key, None)
    (output / "config.json").write_text(json.dumps(config, indent=2))
