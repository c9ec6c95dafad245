"""Verification of weights that others quantized, as far as their format allows.

Without a recipe, the variant's `quantization_config` and its headers must agree on the quantized
layers, because an engine loads by the config.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import VerificationError, raise_as
from recipes.checkpoints.module_kind import is_head, is_linear_weight, is_tied
from recipes.checkpoints.safetensors_header import TensorEntry
from recipes.checkpoints.source_format import QUANTIZER_FILE, quantization_configs
from recipes.checkpoints.unquantized_modules import CURE, SIBLINGS, find_split, fused_name
from recipes.checkpoints.weight_files import read_json
from recipes.ignored_modules import check_patterns, is_ignored
from recipes.quantization import Quantization
from recipes.weight_format import PLAIN, WeightFormat
from recipes.weights.comparison import Compare
from recipes.weights.files import check_adopted_files, check_only_safetensors
from recipes.weights.stored_parts import FLOATING, check_readable, layer_parts
from recipes.weights.tensor_accounting import (
    TensorAccounting,
    TensorFiles,
    account,
    open_folder,
)
from recipes.weights.verification import VerificationResult, compare_numbers, weights_size
from recipes.weights.weight_format import (
    NotComparableError,
    StoredFormats,
    names_and_expressions,
    stored_formats,
)

ALWAYS_LINEAR = ("o_proj", "down_proj")  # besides those that vLLM fuses
UNQUANTIZED = StoredFormats((((), WeightFormat(PLAIN, 16, "float", "none")),))
WIDE_NOTE = (
    "the weights have 16 bits: those of a dequantized file, and those that were trained "
    "afterwards, look alike; the gates decide"
)
HINT = "the files do not belong together, or a program wrote them wrongly: ask who made them"


def quantization_config(config: Mapping[str, Any], quantizer: Mapping[str, Any]) -> Any:
    """Return how a variant is quantized; None if nothing describes it.

    `quantizer` is ModelOpt's hf_quant_config.json, empty without one.
    """
    for found in quantization_configs(config):
        method = found.get("quant_method")
        return {**found, "quant_method": method.lower() if isinstance(method, str) else ""}
    described = quantizer.get("quantization")
    return {**described, "quant_method": "modelopt"} if isinstance(described, dict) else None


def read_quantization(folder: Path) -> Any:
    """Return how the variant in a folder is quantized, as :func:`quantization_config`."""
    file = folder / QUANTIZER_FILE
    quantizer = read_json(file) if file.is_file() else {}
    return quantization_config(read_json(folder / "config.json"), quantizer)


def adopted_formats(config: Any, where: str) -> StoredFormats:
    """Return the formats of such a config; unquantized for None.

    Raises:
        NotComparableError: verification does not support a format.
        VerificationError: it is no description of a format, or has an expression that RE2 refuses.
    """
    if config is not None and not config["quant_method"]:
        raise VerificationError(
            "config.json does not describe how the weights are quantized",
            where=f"{where}.quant_method",
            hint=HINT,
        )
    found = UNQUANTIZED if config is None else stored_formats(config, where)
    for _, form in found.groups:
        check_readable(form)
    with raise_as(VerificationError, "its modules cannot be read", where, errors=ValueError):
        check_patterns([*found.expressions, *_ignored(config)])
    return found


def check_fused_sets(
    config: Any, formats: StoredFormats, modules: Collection[str], where: str
) -> None:
    """Check that modules which vLLM stores as one matrix have one format.

    Raises:
        VerificationError: vLLM would use another format: the first one's, or that of the matrix's
            name, which it looks up first.
    """
    ignored = _ignored(config)
    forms = {name: None if is_ignored(name, ignored) else formats.of(name) for name in modules}
    if split := find_split(forms):
        told = " and ".join(f"'{name}' ({forms[name] or 'in 16 bits'})" for name in split)
        raise VerificationError(
            f"{told} have two formats, and vLLM would load both in that of the first",
            where=f"{where}.config_groups",
            hint=f"quantize again: {CURE}",
        )
    for name, form in forms.items():
        # vLLM leaves the whole out, too, if each of its modules is ignored.
        if (fused := fused_name(name)) is None or is_ignored(name, ignored):
            continue
        found = None if is_ignored(fused, ignored) else formats.of_name(fused) or form
        if found != form:
            raise VerificationError(
                f"'{name}' ({form or 'in 16 bits'}) is part of '{fused}' in vLLM, and config.json "
                f"names that, too ({found or 'in 16 bits'})",
                where=where,
                hint="quantize again, with expressions that match the modules' own names alone",
            )


def modules_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the modules of these tensors."""
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in names))


def verify_adopted(
    source: Path, variant: Path, recipe: Quantization, compare: Compare
) -> VerificationResult:
    """Compare the variant with the source.

    Raises:
        VerificationError: for the first defective file, tensor or layer.
        CheckpointError: a file is missing or damaged, or it is another model.
    """
    check_only_safetensors(variant)
    found = VerificationResult(
        notes=check_adopted_files(source, variant), size_bytes=weights_size(variant)
    )
    before, after = open_folder(source), open_folder(variant)
    config = read_quantization(variant)
    where = f"{variant / 'config.json'}, key quantization_config"
    try:
        formats = adopted_formats(config, where)
        accounts = account(
            before,
            after,
            formats.of_quantized,
            lambda name, tensor: _is_stored_quantized(name, tensor, formats, after),
            tied=is_tied(read_json(source / "config.json")),
            kv_scales=None,
        )
    except NotComparableError as error:
        found.not_compared = error.message
        found.notes.append(f"the weights are not compared with the source's: {error.message}")
        return found
    if config is not None and config["quant_method"] == "compressed-tensors":
        _check_targets(formats, _ignored(config), accounts, where)
        check_fused_sets(config, formats, modules_of(after.tensors), where)
    form_of = formats.of_quantized
    compare_numbers(found, accounts, form_of, recipe, before, after, compare, rescaled=None)
    if config is None and found.median_db is not None:
        found.notes.append(WIDE_NOTE)
    return found


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
    formats: StoredFormats, ignore: list[str], accounts: TensorAccounting, where: str
) -> None:
    """Check that config.json has quantized layers where they are, and nowhere else.

    A layer in 16 bits counts only if others of its name are quantized, or if it is linear in every
    model: not every matrix is one of torch's linear layers.
    """
    targets = formats.expressions
    quantized = [tensor.name.removesuffix(".weight") for tensor in accounts.quantized]
    kinds = {name.rpartition(".")[2] for name in quantized}.union(ALWAYS_LINEAR, *SIBLINGS)
    plain = [
        name.removesuffix(".weight")
        for name in (tensor.name for tensor, _ in accounts.kept)
        if name.removesuffix(".weight").rpartition(".")[2] in kinds and not is_head(name)
    ]

    def is_target(name: str) -> bool:
        listed = "Linear" in targets or is_ignored(name, targets)
        return listed and not is_ignored(name, ignore)

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


def _ignored(config: Any) -> list[str]:
    value = config.get("ignore") if isinstance(config, dict) else None
    if isinstance(config, dict) and config["quant_method"] == "compressed-tensors":
        return [*names_and_expressions(value)]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
