"""Weight formats that a variant's config.json declares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prepare.errors import VerificationError, raise_as
from recipes.checkpoints.source_format import QUANTIZER_FILE, quantization_configs
from recipes.checkpoints.weight_files import read_json
from recipes.fused_sets import CURE, find_split, fused_name
from recipes.module_lists import check_patterns, is_listed, to_expression
from recipes.weight_format import (
    AWQ_GEMM,
    FP8,
    GPTQ,
    GPTQ_V2,
    MODELOPT_FP8,
    MODELOPT_NVFP4,
    PLAIN,
    WeightFormat,
)
from recipes.weights.layouts import NotComparableError, check_readable

MAX_SIZE = 2**20
MAX_WORD = 40
# Errors of an untrusted config of another shape.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class StoredFormats:
    """Formats in a `quantization_config`, by its groups of modules."""

    # Names, `re:` expressions and classes of modules, with their format; in the config's order.
    groups: tuple[tuple[tuple[str, ...], WeightFormat], ...]
    where: str = ""

    def __str__(self) -> str:
        return " and ".join(dict.fromkeys(str(form) for _, form in self.groups))

    @property
    def coarsest(self) -> WeightFormat:
        """The one with the fewest bits."""
        return min((form for _, form in self.groups), key=lambda form: form.bits)

    @property
    def expressions(self) -> list[str]:
        return [target for targets, _ in self.groups for target in targets]

    def of(self, module: str) -> WeightFormat | None:
        """Return a module's format as vLLM finds it, names before classes."""
        first = self.groups[0][1]
        if all(form == first for _, form in self.groups):
            return first
        linear = (form for targets, form in self.groups if "Linear" in targets)
        return self.of_name(module) or next(linear, None)

    def of_name(self, module: str) -> WeightFormat | None:
        """Return the first format that names the module."""
        return next((form for targets, form in self.groups if is_listed(module, targets)), None)

    def of_quantized(self, module: str) -> WeightFormat:
        """Return a quantized module's format, or raise VerificationError."""
        form = self.of(module)
        if form is None:
            raise VerificationError(
                f"config.json has no format for '{module}'",
                where=self.where,
                hint="quantize again, or ask who made it",
            )
        return form


def stored_formats(config: Any, where: str) -> StoredFormats:
    """Return the formats in a `quantization_config`.

    NotComparableError for an unsupported format, VerificationError for no format at all.
    """
    method = str(config.get("quant_method") or "") if isinstance(config, dict) else ""
    if method not in ("compressed-tensors", *METHODS):
        raise NotComparableError(
            f"verification does not read weights of the method '{method:.40}'"
            if method
            else "config.json does not mark the weights as quantized",
            where=where,
        )
    try:
        if method == "compressed-tensors":
            formats = _compressed_tensors_formats(config)
        else:
            formats = StoredFormats((((), METHODS[method](config)),))
        for _, form in formats.groups:
            _check_values(form)
    except NotComparableError as error:
        raise NotComparableError(error.message, where=where) from error
    except MALFORMED as error:
        raise VerificationError(
            f"config.json does not describe the weights' format ({error})",
            where=where,
            hint="add the key as the program that made the weights writes it, or ask their maker",
        ) from error
    return replace(formats, where=where)


def _check_values(form: WeightFormat) -> None:
    """Raise ValueError for values that no program writes."""
    sizes = [form.bits, *(form.block or ()), *([] if form.group is None else [form.group])]
    if not all(type(size) is int and 1 <= size <= MAX_SIZE for size in sizes):
        raise ValueError(f"sizes {sizes}")
    words = (form.name, form.number, form.strategy)
    if not all(isinstance(word, str) and len(word) <= MAX_WORD for word in words):
        raise ValueError("its names are no words")


def _compressed_tensors_formats(config: dict[str, Any]) -> StoredFormats:
    if config.get("transform_config"):
        raise NotComparableError("the weights are rotated (transform_config)")
    groups = [
        (names_and_expressions(group.get("targets")), _group_format(group, config.get("format")))
        for group in config["config_groups"].values()
        if group.get("weights") is not None  # others are of attention
    ]
    if not groups:
        raise NotComparableError("no group has weights")
    # vLLM keeps a target's first place and its last format.
    by_target = {target: form for targets, form in groups for target in targets}
    return StoredFormats(
        tuple(((target,), form) for target, form in by_target.items()) or (*groups,)
    )


def _group_format(group: dict[str, Any], whole: Any) -> WeightFormat:
    weights = group["weights"]
    inputs = group.get("input_activations") or {}
    strategy = str(weights["strategy"])
    return WeightFormat(
        name=str(group.get("format") or whole),
        bits=weights["num_bits"],
        number=weights["type"],
        strategy=strategy,
        group=weights["group_size"] if "group" in strategy else None,
        block=_pair(weights["block_structure"]) if strategy == "block" else None,
        symmetric=weights["symmetric"],
        reordered=weights.get("actorder") == "group",
        static_input=bool(inputs) and inputs.get("dynamic") in (False, "local"),
    )


def _pair(block: Any) -> tuple[int, int]:
    height, width = block
    return int(height), int(width)


def names_and_expressions(words: Any) -> tuple[str, ...]:
    """Return the words that can match in compressed-tensors, which lacks patterns."""
    texts = [word for word in (words if isinstance(words, list) else []) if isinstance(word, str)]
    return tuple(word for word in texts if word.startswith("re:") or to_expression(word) is None)


def _awq_format(config: dict[str, Any]) -> WeightFormat:
    if str(config.get("version", "gemm")).lower() != "gemm" or config.get("bits") != 4:
        raise NotComparableError("AutoAWQ's only supported format is the 4-bit 'gemm'")
    symmetric = not config.get("zero_point", True)
    group = config.get("group_size")
    return WeightFormat(AWQ_GEMM, 4, "int", "group", group=group, symmetric=symmetric)


def _gptq_format(config: dict[str, Any]) -> WeightFormat:
    bits = int(config["bits"])
    group = int(config["group_size"])
    layout = config.get("checkpoint_format", GPTQ)
    if bits not in (4, 8) or layout not in (GPTQ, GPTQ_V2) or config.get("dynamic"):
        raise NotComparableError(
            f"verification does not read GPTQ's '{layout}' in {bits} bits, or by layer"
        )
    strategy, size = ("group", group) if group > 0 else ("channel", None)
    symmetric = bool(config["sym"])
    return WeightFormat(
        layout, bits, "int", strategy, group=size, symmetric=symmetric, reordered=True
    )


def _fp8_format(config: dict[str, Any]) -> WeightFormat:
    if block := config.get("weight_block_size"):
        return WeightFormat(FP8, 8, "float", "block", block=_pair(block))
    static = config.get("activation_scheme") == "static"
    return WeightFormat(FP8, 8, "float", "tensor", static_input=static)


def _modelopt_format(config: dict[str, Any]) -> WeightFormat:
    algorithm = str(config.get("quant_algo", "")).upper()
    if algorithm == "FP8":
        return WeightFormat(MODELOPT_FP8, 8, "float", "tensor", static_input=True)
    if algorithm == "NVFP4":
        return WeightFormat(MODELOPT_NVFP4, 4, "float", "tensor_group", group=16, static_input=True)
    raise NotComparableError(f"verification does not read ModelOpt's {algorithm[:40]!r}")


METHODS: dict[str, Callable[[dict[str, Any]], WeightFormat]] = {
    "awq": _awq_format,
    "gptq": _gptq_format,
    "fp8": _fp8_format,
    "modelopt": _modelopt_format,
    "modelopt_fp4": _modelopt_format,
}


UNQUANTIZED = StoredFormats((((), WeightFormat(PLAIN, 16, "float", "none")),))
HINT = "the files do not belong together, or a program wrote them wrongly: ask who made them"


def quantization_config(config: Mapping[str, Any], quantizer: Mapping[str, Any]) -> Any:
    """Return how a variant is quantized, if anything describes it.

    `quantizer` is ModelOpt's hf_quant_config.json.
    """
    for quantization in quantization_configs(config):
        method = quantization.get("quant_method")
        return {**quantization, "quant_method": method.lower() if isinstance(method, str) else ""}
    described = quantizer.get("quantization")
    return {**described, "quant_method": "modelopt"} if isinstance(described, dict) else None


def read_quantization(folder: Path) -> Any:
    """Return :func:`quantization_config` of a folder."""
    file = folder / QUANTIZER_FILE
    quantizer = read_json(file) if file.is_file() else {}
    return quantization_config(read_json(folder / "config.json"), quantizer)


def adopted_formats(config: Any, where: str) -> StoredFormats:
    """Return the formats of such a config; unquantized for None.

    Raises as :func:`stored_formats`.
    """
    if config is not None and not config["quant_method"]:
        raise VerificationError(
            "config.json does not describe how the weights are quantized",
            where=f"{where}.quant_method",
            hint=HINT,
        )
    formats = UNQUANTIZED if config is None else stored_formats(config, where)
    for _, form in formats.groups:
        check_readable(form)
    with raise_as(VerificationError, "its modules cannot be read", where, errors=ValueError):
        check_patterns([*formats.expressions, *ignored_modules(config)])
    return formats


def check_fused_sets(
    config: Any, formats: StoredFormats, modules: Collection[str], where: str
) -> None:
    """Check that modules which vLLM stores as one matrix have one format.

    Else vLLM would use the first one's, or the matrix's name's.
    """
    ignored = ignored_modules(config)
    forms = {name: None if is_listed(name, ignored) else formats.of(name) for name in modules}
    if split := find_split(forms):
        told = " and ".join(f"'{name}' ({forms[name] or 'in 16 bits'})" for name in split)
        raise VerificationError(
            f"{told} have two formats, and vLLM would load both in that of the first",
            where=f"{where}.config_groups",
            hint=f"quantize again: {CURE}",
        )
    for name, form in forms.items():
        # vLLM leaves the whole out, too, if each of its modules is ignored.
        if (fused := fused_name(name)) is None or is_listed(name, ignored):
            continue
        of_set = None if is_listed(fused, ignored) else formats.of_name(fused) or form
        if of_set != form:
            raise VerificationError(
                f"'{name}' ({form or 'in 16 bits'}) is part of '{fused}' in vLLM, and config.json "
                f"names that, too ({of_set or 'in 16 bits'})",
                where=where,
                hint="quantize again, with expressions that match the modules' own names alone",
            )


def ignored_modules(config: Any) -> list[str]:
    """Return names and expressions of modules in 16 bits."""
    value = config.get("ignore") if isinstance(config, dict) else None
    if isinstance(config, dict) and config["quant_method"] == "compressed-tensors":
        return [*names_and_expressions(value)]
    return (
        [module for module in value if isinstance(module, str)] if isinstance(value, list) else []
    )


def modules_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the modules of these tensors."""
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in names))
