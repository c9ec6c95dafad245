"""Accounting of weights that others quantized, as far as their format allows.

An engine loads by the `quantization_config`, so headers must agree.
"""

from __future__ import annotations

from pathlib import Path

from prepare.errors import VerificationError
from recipes.checkpoints.module_kind import is_head, is_linear_weight, is_tied
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.checkpoints.weight_files import read_json
from recipes.fused_sets import SIBLINGS
from recipes.module_lists import is_listed
from recipes.weight_format import PLAIN
from recipes.weights.accounting import TensorFiles, WeightComparison, account, open_folder
from recipes.weights.layouts import FLOATING, layer_parts
from recipes.weights.stored_formats import (
    HINT,
    StoredFormats,
    adopted_formats,
    check_fused_sets,
    ignored_modules,
    modules_of,
    read_quantization,
)

ALWAYS_LINEAR = ("o_proj", "down_proj")  # besides those that vLLM fuses


def account_adopted(source: Path, variant: Path) -> WeightComparison:
    """Return what to compare.

    NotComparableError: unsupported format. VerificationError: files contradict each other or the
    source.
    """
    before = open_folder(source)
    after = open_folder(variant)
    config = read_quantization(variant)
    where = f"{variant / 'config.json'}, key quantization_config"
    formats = adopted_formats(config, where)
    comparison = account(
        before,
        after,
        formats.of_quantized,
        lambda name, tensor: _is_stored_quantized(name, tensor, formats, after),
        tied=is_tied(read_json(source / "config.json")),
        kv_scales=None,
        rescaled=None,
    )
    if config is not None and config["quant_method"] == "compressed-tensors":
        _check_targets(formats, ignored_modules(config), comparison, where)
        check_fused_sets(config, formats, modules_of(after.tensors), where)
    return comparison


def _is_stored_quantized(
    name: str, tensor: TensorEntry, formats: StoredFormats, variant: TensorFiles
) -> bool:
    """Return whether other tensors replace a source's matrix."""
    module = name.removesuffix(".weight")
    form = formats.of(module)
    if len(tensor.shape) != 2 or not name.endswith(".weight") or form is None:
        return False
    stored = variant.tensors.get(name)
    if form.name == PLAIN:  # embeddings may have been quantized too
        return stored is not None
    if not is_linear_weight(name, tensor):
        return False
    suffixes = [part.suffix for part in layer_parts(form, *tensor.shape) if part.suffix != "weight"]
    return any(f"{module}.{suffix}" in variant.tensors for suffix in suffixes) or (
        stored is not None and stored.dtype not in FLOATING
    )


def _check_targets(
    formats: StoredFormats, ignore: list[str], comparison: WeightComparison, where: str
) -> None:
    """Check that exactly the layers in config.json are quantized.

    A 16-bit layer counts only if others of its name are quantized, or if it is always linear.
    """
    targets = formats.expressions
    quantized = list(comparison.layers)
    kinds = {name.rpartition(".")[2] for name in quantized}.union(ALWAYS_LINEAR, *SIBLINGS)
    plain = [
        name.removesuffix(".weight")
        for name in comparison.kept
        if name.removesuffix(".weight").rpartition(".")[2] in kinds and not is_head(name)
    ]

    def is_target(name: str) -> bool:
        listed = "Linear" in targets or is_listed(name, targets)
        return listed and not is_listed(name, ignore)

    for names, stored, told in (
        (quantized, "quantized", "in 16 bits"),
        (plain, "in 16 bits", "quantized"),
    ):
        wrong = [name for name in names if is_target(name) == (told == "quantized")]
        if wrong:
            raise VerificationError(
                f"'{wrong[0]}' is stored {stored}, and config.json has it {told}"
                + (f"; so are {len(wrong) - 1} more" if len(wrong) > 1 else ""),
                where=f"{where}.ignore",
                hint=HINT,
            )
