"""How fast verification compares a variant with its source, and how much memory it takes.

A synthetic checkpoint of 1.7 GB with the layers of an 8B Llama: random stored weights, and a source
that is those weights dequantized, with 2 % noise. Both lie in the page cache when they are read.
Ends in one line of JSON.

    python benchmarks/verify_stream.py [--blocks 4] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.verification.dequantize import StoredPart, layer_parts, layer_weights
from pipeline.verification.quantization_noise import chunks
from pipeline.verification.tensor_files import open_folder
from recipes.weight_format import WeightFormat

SHAPES = {
    "self_attn.q_proj": (4096, 4096),
    "self_attn.k_proj": (1024, 4096),
    "self_attn.o_proj": (4096, 4096),
    "mlp.gate_proj": (14336, 4096),
    "mlp.up_proj": (14336, 4096),
    "mlp.down_proj": (4096, 14336),
}
CALIBRATION = {"dataset": "builtin"}
RECIPES: dict[str, dict[str, Any]] = {
    "fp8-dynamic": {"kind": "preset", "scheme": "FP8_DYNAMIC"},
    "nvfp4": {"kind": "preset", "scheme": "NVFP4", "calibration": CALIBRATION},
    "gptq-w4a16": {"kind": "gptq", "scheme": "W4A16", "calibration": CALIBRATION},
    "awq-w4a16": {"kind": "awq", "calibration": CALIBRATION},
    "autoawq-w4a16": {"kind": "autoawq", "calibration": CALIBRATION},
}
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1, "U8": 1, "I32": 4, "I64": 8}
VERIFY = """
import json, resource, sys, time
from pathlib import Path
from pydantic import TypeAdapter
from pipeline.verification.verification import verify_variant
from recipes.quantization import AnyQuantization

source, variant, recipe = sys.argv[1:]
quantization = TypeAdapter(AnyQuantization).validate_json(recipe)
started = time.perf_counter()
found = verify_variant(Path(source), Path(variant), quantization, lambda done, total: None)
seconds = time.perf_counter() - started
report = {"seconds": seconds, "cpu_seconds": time.process_time(), "note": found.notes[0]}
report["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
print(json.dumps(report))
"""


def layers(blocks: int) -> dict[str, tuple[int, int]]:
    """Shapes of all linear layers."""
    return {
        f"model.layers.{block}.{name}": shape
        for block in range(blocks)
        for name, shape in SHAPES.items()
    }


def header_of(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """Return the header of a file with tensors of these types and shapes."""
    entries, position = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = position + int(np.prod(shape)) * SIZES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def part_data(
    part: StoredPart, dtype: str, shape: tuple[int, ...], random: np.random.Generator
) -> bytes:
    """Random numbers that the format can hold; scales of one, since rows alike are enough."""
    if part.suffix == "weight_shape":
        return np.array(shape, np.int64).tobytes()
    assert part.shapes is not None
    count = int(np.prod(part.shapes[0]))
    if "scale" in part.suffix:
        one = {"BF16": b"\x80\x3f", "F16": b"\0\x3c", "F32": b"\0\0\x80\x3f", "F8_E4M3": b"\x38"}
        return one[dtype] * count
    raw = random.integers(0, 256, count * SIZES[dtype], dtype=np.uint8)
    if dtype == "F8_E4M3":
        raw &= 0b10111111  # smaller than 2, and no NaN
    return raw.tobytes()


def write_variant(folder: Path, form: WeightFormat, shapes: dict[str, tuple[int, int]]) -> None:
    """Weights of random bits in the format."""
    parts = {
        f"{module}.{part.suffix}": (part, shape)
        for module, shape in shapes.items()
        for part in layer_parts(form, *shape)
    }
    tensors = {name: (p.dtypes[0], (p.shapes or ((),))[0]) for name, (p, _) in parts.items()}
    random = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header_of(tensors))
        for name, (part, shape) in parts.items():
            file.write(part_data(part, tensors[name][0], shape, random))


def write_source(
    folder: Path, variant: Path, form: WeightFormat, shapes: dict[str, tuple[int, int]]
) -> None:
    """Return the variant's weights as numbers, in bf16, with some noise."""
    stored = open_folder(variant).tensors
    random = np.random.default_rng(1)
    noise = 1 + 0.02 * random.standard_normal(2**22, dtype=np.float32)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header_of({f"{n}.weight": ("BF16", shape) for n, shape in shapes.items()}))
        for module, shape in shapes.items():
            layer = layer_weights(form, module, shape, stored)
            for begin, end in chunks(*shape):
                values = layer.rows(begin, end).reshape(-1)
                values *= noise[: len(values)]
                file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def config_of(form: WeightFormat) -> dict[str, Any]:
    """Return the quantization_config that names this format."""
    if form.name == "awq-gemm":
        shared = {"bits": 4, "group_size": form.group, "zero_point": True}
        return {"quant_method": "awq", "version": "gemm", **shared}
    weights = {
        "num_bits": form.bits,
        "type": form.number,
        "strategy": form.strategy,
        "symmetric": form.symmetric,
        "group_size": form.group,
        "block_structure": form.block,
    }
    inputs = {"dynamic": "local" if form.static_input else True}
    group = {"format": form.name, "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


def measure(recipe: str, folder: Path, blocks: int) -> dict[str, Any]:
    """Write both checkpoints and verify one against the other in a separate process."""
    from pydantic import TypeAdapter

    from recipes.quantization import AnyQuantization

    form = TypeAdapter(AnyQuantization).validate_python(RECIPES[recipe]).weight_formats[0]
    source, variant = folder / "source", folder / "variant"
    for place in (source, variant):
        place.mkdir(parents=True)
        config: dict[str, Any] = {"model_type": "llama"}
        if place == variant:
            config["quantization_config"] = config_of(form)
        (place / "config.json").write_text(json.dumps(config))
    write_variant(variant, form, layers(blocks))
    write_source(source, variant, form, layers(blocks))
    size = (source / "model.safetensors").stat().st_size
    words = [sys.executable, "-c", VERIFY, source, variant, json.dumps(RECIPES[recipe])]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found = json.loads(done.stdout)
    shutil.rmtree(folder)
    return {
        "recipe": recipe,
        "source_gb": round(size / 1e9, 2),
        "seconds": round(found["seconds"], 2),
        "gb_per_second": round(size / 1e9 / found["seconds"], 2),
        "gb_per_cpu_second": round(size / 1e9 / found["cpu_seconds"], 2),
        "peak_mb": round(found["peak_mb"]),
        "note": found["note"].partition(";")[0],
    }


def main() -> None:
    """Measure every format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES))
    given = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for recipe in given.recipes:
            results.append(measure(recipe, Path(folder) / recipe, given.blocks))
            print(results[-1], flush=True)
    print(json.dumps({"benchmark": "verify_stream", "results": results}))


if __name__ == "__main__":
    main()
