"""Verification of weights that others quantized, as far as their format allows.

There is no recipe to compare with: the variant's own `quantization_config` has the format, and its
headers have which layers are quantized. Both must agree, because an engine loads by the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.checkpoint.ignored_modules import is_ignored
from pipeline.checkpoint.safetensors_header import TensorEntry
from pipeline.checkpoint.source_format import QUANTIZER_FILE, quantization_configs
from pipeline.checkpoint.weight_files import read_json
from pipeline.core.errors import VerificationError
from pipeline.inspection.linear_layers import is_head, is_linear_weight, is_tied
from pipeline.inspection.regex_safety import check_expressions
from pipeline.verification.adopted_files import check_adopted_files
from pipeline.verification.auxiliary_files import check_only_safetensors
from pipeline.verification.dequantize import check_readable, layer_parts
from pipeline.verification.number_types import FLOATING
from pipeline.verification.stored_part import check_scale
from pipeline.verification.tensor_accounting import TensorAccounting, account
from pipeline.verification.tensor_files import StoredTensor, TensorFiles, open_folder
from pipeline.verification.verification import Advance, VerificationResult, WeightComparison
from pipeline.verification.weight_format import NotComparableError, block_name, stored_format
from recipes.quantization import Quantization, Rounding
from recipes.weight_format import PLAIN, WeightFormat

UNQUANTIZED = WeightFormat(PLAIN, 16, "float", "none")
WIDE_NOTE = (
    "the weights have 16 bits: those of a dequantized GGUF file, and those that were trained "
    "afterwards, look alike; the gates decide"
)
HINT = "the files do not belong together, or a program wrote them wrongly: ask who made them"


def quantization_config(config: Mapping[str, Any], quantizer: Mapping[str, Any]) -> Any:
    """Return how a variant is quantized; None if nothing describes it.

    Args:
        config: its config.json.
        quantizer: ModelOpt's hf_quant_config.json, empty without one.
    """
    for found in quantization_configs(config):
        method = found.get("quant_method")
        return {**found, "quant_method": method.lower() if isinstance(method, str) else ""}
    described = quantizer.get("quantization")
    return {**described, "quant_method": "modelopt"} if isinstance(described, dict) else None


def adopted_format(config: Any, where: str) -> WeightFormat:
    """Return the format of such a config; unquantized for None.

    Raises:
        NotComparableError: verification does not read this format.
        VerificationError: it is no description of a format.
    """
    if config is not None and not config["quant_method"]:
        raise VerificationError(
            "config.json does not describe how the weights are quantized",
            where=f"{where}.quant_method",
            hint=HINT,
        )
    form = UNQUANTIZED if config is None else stored_format(config, where)
    check_readable(form)
    return form


def read_quantization(folder: Path) -> Any:
    """Return how the variant in a folder is quantized, as :func:`quantization_config`."""
    file = folder / QUANTIZER_FILE
    quantizer = read_json(file) if file.is_file() else {}
    return quantization_config(read_json(folder / "config.json"), quantizer)


def verify_adopted(
    source: Path, variant: Path, recipe: Quantization, advance: Advance
) -> VerificationResult:
    """Compare the variant with the source.

    Args:
        advance: receives the number of compared bytes, and the total.

    Raises:
        VerificationError: for the first defective file, tensor or layer.
        CheckpointError: a file is missing or damaged, or it is another model.
    """
    check_only_safetensors(variant)
    found = VerificationResult(notes=check_adopted_files(source, variant))
    before, after = open_folder(source), open_folder(variant)
    found.size_bytes = sum(path.stat().st_size for path in variant.glob("*.safetensors"))
    found.planned_bytes = after.size
    config = read_quantization(variant)
    try:
        form = adopted_format(config, f"{variant / 'config.json'}, key quantization_config")
        accounts = account(
            before,
            after,
            form,
            lambda name, tensor: is_stored_quantized(name, tensor, form, after),
            tied=is_tied(read_json(source / "config.json")),
            kv_scales=None,
        )
    except NotComparableError as error:
        found.not_compared = error.message
        found.notes.append(f"the weights are not compared with the source's: {error.message}")
        return found
    if config is None:
        found.notes.append(WIDE_NOTE)
    elif config["quant_method"] == "compressed-tensors":
        check_targets(config, accounts, str(variant / "config.json"))
    for scale in accounts.kv_scales:
        check_scale(scale, scale.floats())
    found.scales = len(accounts.kv_scales)
    rounding = find_rounding(accounts)
    WeightComparison(accounts, form, recipe, before, after, advance, rounding).run(found)
    return found


def is_stored_quantized(
    name: str, tensor: TensorEntry, form: WeightFormat, variant: TensorFiles
) -> bool:
    """Return whether the variant has other tensors in the place of a source's matrix."""
    if len(tensor.shape) != 2 or not name.endswith(".weight"):
        return False
    stored = variant.tensors.get(name)
    if form.name == PLAIN:  # embeddings may have been quantized too
        return stored is not None
    if not is_linear_weight(name, tensor):
        return False
    module = name.removesuffix(".weight")
    suffixes = [part.suffix for part in layer_parts(form, *tensor.shape) if part.suffix != "weight"]
    return any(f"{module}.{suffix}" in variant.tensors for suffix in suffixes) or (
        stored is not None and stored.dtype not in FLOATING
    )


def check_targets(config: dict[str, Any], accounts: TensorAccounting, where: str) -> None:
    """Check that an engine looks for quantized tensors where they are, and nowhere else.

    A layer in 16 bits counts only if others of its name are quantized: not every matrix is one of
    torch's linear layers.

    Raises:
        VerificationError: the config's targets and ignore list differ from the tensors.
        UsageError: one of their expressions does not end.
    """
    groups = config["config_groups"].values()
    targets = [word for group in groups for word in _words(group.get("targets"))]
    ignore = _words(config.get("ignore"))
    quantized = [tensor.name.removesuffix(".weight") for tensor in accounts.quantized]
    kinds = {name.rpartition(".")[2] for name in quantized}
    plain = [tensor.name.removesuffix(".weight") for tensor, _ in accounts.kept]
    plain = [name for name in plain if name.rpartition(".")[2] in kinds and not is_head(name)]
    check_expressions(
        [*targets, *ignore], [*quantized, *plain], f"{where}, key quantization_config"
    )

    def is_target(name: str) -> bool:
        listed = "Linear" in targets or is_ignored(name, targets)
        return listed and not is_ignored(name, ignore)

    for names, stored, told in (
        ([name for name in quantized if not is_target(name)], "quantized", "in 16 bits"),
        ([name for name in plain if is_target(name)], "in 16 bits", "quantized"),
    ):
        if names:
            raise VerificationError(
                f"'{names[0]}' is stored {stored}, and config.json has it {told}"
                + (f"; so are {len(names) - 1} more" if len(names) > 1 else ""),
                where=f"{where}, key quantization_config.ignore",
                hint=HINT,
            )


def _words(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def find_rounding(accounts: TensorAccounting) -> Rounding:
    """Return whether columns were rescaled: then the norms before them were, too."""
    norms = [pair for pair in accounts.kept if is_norm(pair[0])]
    changed = any(not np.array_equal(before.floats(), after.floats()) for before, after in norms)
    return "rescaled" if changed else "compensated"


def is_norm(tensor: StoredTensor) -> bool:
    """Return whether it is a vector of weights within a block."""
    inside = bool(block_name(tensor.name)) and tensor.name.endswith(".weight")
    return inside and len(tensor.shape) == 1
