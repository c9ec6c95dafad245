"""Checks of a machine or a model for a recipe or profile.

They read no weights, build no environment and use no network.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.core.errors import PreflightError, PrepareError, UsageError
from pipeline.core.gpus import MIN_DRIVER_VERSION, is_driver_too_old
from pipeline.inspection.header_source import HeaderSource
from pipeline.inspection.variant_size import VariantWeights
from pipeline.plan.machine import Machine
from pipeline.plan.suitability import find_making_faults
from pipeline.verification.adopted import quantization_config
from recipes import catalog
from recipes.catalog import BASELINE
from recipes.engine_arguments import DIVIDES_GPUS, count_gpus
from recipes.engines import find_engine
from recipes.schema import Recipe, ServingProfile


def find_missing_gpus(profile: ServingProfile, machine: Machine) -> PrepareError | None:
    """Compare the number of GPUs with that of one server."""
    if profile.accelerator != "cuda":
        return None
    wanted = count_gpus(profile.engine_arguments)
    if machine.gpus >= wanted:
        return None
    found = f"this machine has {machine.gpus}" if machine.gpus else "none is found here"
    keys = [name for name in DIVIDES_GPUS if profile.engine_arguments.get(name, 1) != 1]
    hints = ["run on a machine that nvidia-smi lists them on, all of one kind"]
    if machine.visible_devices is not None:
        found += f" that CUDA_VISIBLE_DEVICES={machine.visible_devices} shows"
        hints.insert(0, f"let CUDA_VISIBLE_DEVICES show {wanted}, or unset it")
    if keys and machine.gpus:
        hints.append(f"lower {' or '.join(keys)} in the profile")
    return UsageError(
        f"the profile '{profile.name}' serves on {wanted} NVIDIA GPU{'s' if wanted > 1 else ''}"
        f", and {found}",
        where=f"--profile {profile.name}"
        + "".join(f", key engine_arguments.{name}" for name in keys[:1]),
        hint=f"{'; '.join(hints)}; or choose another profile: {', '.join(catalog.profile_names())}",
    )


def find_driver_fault(profile: ServingProfile, machine: Machine) -> PrepareError | None:
    """Refuse a driver that cannot run the CUDA version of the locked environments."""
    if profile.accelerator != "cuda" or not is_driver_too_old(machine.driver):
        return None
    return PreflightError(
        f"the NVIDIA driver is {machine.driver}, and the CUDA 13 of the environments needs "
        f"{MIN_DRIVER_VERSION} or newer",
        where=f"--profile {profile.name}",
        hint=f"install a driver from {MIN_DRIVER_VERSION} on; or name interpreters of your own for "
        "quantize and serve in the settings file, built for an older CUDA",
    )


def find_loading_fault(
    model: HeaderSource, profile: ServingProfile, variant: str = ""
) -> PrepareError | None:
    """Refuse weights that others quantized, if the engine cannot load them.

    Args:
        variant: its name; empty for the baseline.
    """
    config = quantization_config(model.config, model.quantizer)
    lack = find_engine(profile.engine).cannot_load(config, profile.accelerator) if config else ""
    if not lack:
        return None
    cure = "leave the variant out" if variant else "start from the 16-bit checkpoint"
    return PreflightError(
        f"'{variant or BASELINE}' cannot be served: {lack}",
        where=f"{model.where}, key quantization_config",
        hint=f"{cure}; or serve it by an engine that loads it, and compare two endpoints: prepare "
        "gate (docs/how-to/gate-two-endpoints.md)",
    )


def find_gpu_fault(
    recipe: Recipe, profile: ServingProfile, machine: Machine
) -> PrepareError | None:
    """Refuse a GPU without the recipe's kernels, such as FP8 below capability 8.9."""
    found = machine.compute_capability if profile.accelerator == "cuda" else None
    if found is None or not (lack := recipe.lacks_kernels_on(found)):
        return None
    return UsageError(
        f"'{recipe.name}' {lack}, this one has {found}",
        where=f"--recipe {recipe.name}",
        hint="leave the recipe out, or run on another GPU",
    )


def find_unsuitable(
    recipe: Recipe,
    source: HeaderSource,
    weights: VariantWeights,
    *,
    made: bool = False,
) -> Iterable[PrepareError]:
    """Yield the reasons against making a recipe's weights, unless they are `made` already."""
    if not made and recipe.quantization.quantizes:
        yield from find_making_faults(recipe, source, weights)


def tensor_parallel(profile: ServingProfile) -> int:
    """Return the GPUs of one replica."""
    value = profile.engine_arguments.get("tensor-parallel-size", 1)
    return value if type(value) is int and value > 0 else 1


def is_pipelined(profile: ServingProfile) -> bool:
    """Return whether the GPUs divide the layers, which the estimates do not support."""
    return profile.engine_arguments.get("pipeline-parallel-size", 1) != 1
