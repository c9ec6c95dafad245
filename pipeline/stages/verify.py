"""Checks that quantized weights are what the recipe promises, before anything is served.

Reads safetensors headers, and the values of scales only; no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.checkpoint import CARRIED_OVER, Checkpoint
from pipeline.errors import VerificationError
from pipeline.quantizable import is_quantizable as is_quantizable  # others ask for it here too
from pipeline.safetensors_header import SafetensorsHeader, Tensor, read_header
from pipeline.stages.context import StageContext
from pipeline.weight_files import read_json, weight_files

REVISION = 1

# A quantized `X.weight` is replaced by these, by llm-compressor's format of compressed-tensors.
SUFFIXES: dict[str, dict[str, tuple[str, ...]]] = {
    "preset": {"weight": ("F8_E4M3",), "weight_scale": ("BF16", "F16", "F32")},
    "awq": {
        "weight_packed": ("I32",),
        "weight_scale": ("BF16", "F16", "F32"),
        "weight_shape": ("I64", "I32"),
    },
}
ZERO_POINTS: dict[str, tuple[str, ...]] = {"weight_zero_point": ("I32",)}
PACKED_BITS = (4, 8)  # widths that the recipes offer, packed into 32-bit words
WORD_BITS = 32
UNQUANTIZED = ("BF16", "F16", "F32", "F64")


def run(context: StageContext) -> dict[str, Any]:
    """Verify the `weights` input against its source.

    Raises:
        VerificationError: naming the first file or tensor that is wrong.
    """
    source = Checkpoint.model_validate(context.runtime["checkpoint"])
    variant = context.input_folder("weights") / "output"
    quantization = context.parameters["quantization"]
    check_only_safetensors(variant)
    config = check_quantization_config(variant)
    check_carried_over(source, variant)
    source_tensors = read_tensors(source.path)
    variant_tensors = read_tensors(variant)
    suffixes = expected_suffixes(quantization["kind"], config)
    tied = bool(read_json(source.path / "config.json").get("tie_word_embeddings", False))
    quantized = check_tensors(
        source_tensors, variant_tensors, suffixes, quantization["ignore"], tied=tied
    )
    scales = check_scales(variant_tensors, context)
    size = check_smaller(source, variant)
    return {
        "quantized_tensors": quantized,
        "scales_checked": scales,
        # So that whatever was measured of other weights is stale when they are made again.
        "weights_digest": context.input_record("weights").result["weights_digest"],
        "weights_bytes": size,
        "size_ratio": size / source.weights_bytes,
    }


TensorPlace = tuple[Path, SafetensorsHeader, Tensor]


def read_tensors(folder: Path) -> dict[str, TensorPlace]:
    """Every tensor of a checkpoint by name, with the file it lies in."""
    found: dict[str, TensorPlace] = {}
    for path in weight_files(folder):
        header = read_header(path)
        for name, tensor in header.tensors.items():
            found[name] = (path, header, tensor)
    return found


def check_only_safetensors(variant: Path) -> None:
    """No pickled weights may ride along."""
    for path in variant.iterdir():
        if path.suffix in {".bin", ".pt", ".pth", ".pkl", ".ckpt"}:
            raise VerificationError("the variant holds a file of pickled data", where=str(path))


def check_quantization_config(variant: Path) -> dict[str, Any]:
    """The engine chooses its kernels by config.json's quantization_config; returns it."""
    path = variant / "config.json"
    config = read_json(path).get("quantization_config")
    if not isinstance(config, dict) or config.get("quant_method") != "compressed-tensors":
        raise VerificationError(
            "config.json does not say that the weights are quantized",
            where=f"{path}, key quantization_config",
        )
    return config


def expected_suffixes(kind: str, config: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """What replaces a quantized `X.weight`, and in which types; asymmetric groups have zero points.

    Args:
        kind: of the recipe's quantization.
        config: the variant's quantization_config, as compressed-tensors writes it.
    """
    weights = [group.get("weights") or {} for group in config.get("config_groups", {}).values()]
    if kind == "awq" and any(not group.get("symmetric", True) for group in weights):
        return {**SUFFIXES[kind], **ZERO_POINTS}
    return SUFFIXES[kind]


def check_carried_over(source: Checkpoint, variant: Path) -> None:
    """Tokenizer and chat template are byte for byte those of the source."""
    for name in CARRIED_OVER:
        before, after = source.path / name, variant / name
        if before.is_file() != after.is_file():
            raise VerificationError(
                f"'{name}' {'is missing from' if before.is_file() else 'was added to'} the variant",
                where=str(after),
            )
        if before.is_file() and before.read_bytes() != after.read_bytes():
            raise VerificationError(f"'{name}' differs from the source's", where=str(after))


def check_tensors(
    source: dict[str, TensorPlace],
    variant: dict[str, TensorPlace],
    suffixes: dict[str, tuple[str, ...]],
    ignore: list[str],
    *,
    tied: bool,
) -> int:
    """Every source tensor is either quantized as the recipe says, or there in its shape in 16 bits.

    Args:
        source: the unquantized tensors.
        variant: what was made of them.
        suffixes: as :func:`expected_suffixes` gives.
        ignore: the recipe's list.
        tied: lm_head is the embedding, and need not be stored again.

    Returns:
        number of tensors that were quantized.
    """
    quantized = 0
    for name, (_, _, tensor) in source.items():
        if is_quantizable(name, tensor, ignore):
            module = name.removesuffix(".weight")
            for suffix, dtypes in suffixes.items():
                check_tensor(f"{module}.{suffix}", dtypes, variant)
            check_shapes(module, tensor, variant)
            quantized += 1
        elif name not in variant:
            if not (tied and name.startswith("lm_head")):
                raise VerificationError(
                    f"the source's tensor '{name}' is missing", where=first_file(variant)
                )
        else:
            check_unquantized(name, tensor, variant[name])
    if not quantized:
        raise VerificationError("nothing was quantized", where=first_file(variant))
    return quantized


def check_unquantized(name: str, source: Tensor, place: TensorPlace) -> None:
    """A tensor that the recipe leaves alone has its shape still, and no narrower a type."""
    path, _, tensor = place
    if tensor.shape != source.shape:
        raise VerificationError(
            f"'{name}' has shape {tensor.shape}, the source's {source.shape}", where=str(path)
        )
    if tensor.dtype not in (source.dtype, *UNQUANTIZED):
        raise VerificationError(
            f"'{name}' is stored as {tensor.dtype}, and the recipe does not quantize it",
            where=str(path),
            cure="the recipe's ignore list takes whole module names, and expressions after 're:'",
        )


def check_tensor(name: str, dtypes: tuple[str, ...], variant: dict[str, TensorPlace]) -> None:
    """The tensor is there, in one of these types."""
    if name not in variant:
        raise VerificationError(
            f"the tensor '{name}' is missing: this layer was not quantized",
            where=first_file(variant),
            cure="the recipe's ignore list and the model's layers do not agree; see the worker.log",
        )
    path, _, tensor = variant[name]
    if tensor.dtype not in dtypes:
        raise VerificationError(
            f"'{name}' is stored as {tensor.dtype}, not as {' or '.join(dtypes)}", where=str(path)
        )


def check_shapes(module: str, source: Tensor, variant: dict[str, TensorPlace]) -> None:
    """One scale a row (per channel) or one a row and group; packed weights of the right width."""
    rows, columns = source.shape
    scale = variant[f"{module}.weight_scale"][2].shape
    groups = scale[1] if len(scale) == 2 else 0
    if not groups or scale[0] != rows or columns % groups:
        raise VerificationError(
            f"'{module}.weight_scale' has shape {scale} for a layer of {rows} x {columns}",
            where=str(variant[f"{module}.weight_scale"][0]),
        )
    whole = variant.get(f"{module}.weight")
    if whole is not None and whole[2].shape != source.shape:
        raise VerificationError(
            f"'{module}.weight' has shape {whole[2].shape}, the source's {source.shape}",
            where=str(whole[0]),
        )
    packed = variant.get(f"{module}.weight_packed")
    widths = {(rows, -(-columns * bits // WORD_BITS)) for bits in PACKED_BITS}
    if packed is not None and packed[2].shape not in widths:
        raise VerificationError(
            f"'{module}.weight_packed' has shape {packed[2].shape} "
            f"for a layer of {rows} x {columns}",
            where=str(packed[0]),
        )


def check_scales(variant: dict[str, TensorPlace], context: StageContext) -> int:
    """Every scale is finite and above zero; returns how many tensors were looked at."""
    names = [name for name in variant if name.endswith("_scale")]
    for done, name in enumerate(names, start=1):
        path, header, tensor = variant[name]
        finite, positive = read_finite_positive(path, header, tensor)
        if not finite or not positive:
            raise VerificationError(
                f"'{name}' holds a scale that is {'not above zero' if finite else 'not finite'}",
                where=str(path),
                cure="the calibration overflowed, or the source has such weights; "
                "look at the layer named",
            )
        context.advance("verify scales", done, len(names), "tensors")
    return len(names)


def read_finite_positive(
    path: Path, header: SafetensorsHeader, tensor: Tensor
) -> tuple[bool, bool]:
    """Whether all values are finite, and all are above zero."""
    import numpy as np

    count = tensor.end - tensor.begin
    raw = np.fromfile(path, dtype=np.uint8, count=count, offset=header.data_start + tensor.begin)
    if tensor.dtype == "BF16":
        # bfloat16 is the upper half of a float32, a type that numpy has.
        values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = raw.view({"F16": "<f2", "F32": "<f4"}[tensor.dtype])
    return bool(np.isfinite(values).all()), bool((values > 0).all())


def check_smaller(source: Checkpoint, variant: Path) -> int:
    """The variant's weights take fewer bytes than the source's; returns them."""
    size = sum(path.stat().st_size for path in variant.glob("*.safetensors"))
    if size >= source.weights_bytes:
        raise VerificationError(
            f"the variant's weights take {size} bytes, the source's only {source.weights_bytes}",
            where=str(variant),
        )
    return size


def first_file(variant: dict[str, TensorPlace]) -> str:
    """A file to name when a tensor is in none."""
    return str(next(iter(variant.values()))[0].parent) if variant else "the variant is empty"
