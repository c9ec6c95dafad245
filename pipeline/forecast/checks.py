"""The checks of a preflight: each says what would go wrong, or nothing.

None of them reads weights, builds an environment or asks the network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from pipeline.core.errors import PreflightError, PrepareError, UsageError
from pipeline.core.gpus import LEAST_DRIVER, is_driver_too_old
from pipeline.forecast.fit import Site
from pipeline.forecast.gpu_plan import candidates_of, cure
from pipeline.forecast.machine import Machine
from pipeline.forecast.stage_needs import SMALL_FILES_BYTES, stage_needs
from pipeline.inspection.inspection import Inspection
from pipeline.inspection.source import Source
from pipeline.inspection.variant_size import VariantWeights
from pipeline.plan.suitability import (
    check_architecture,
    check_experts,
    check_mtp,
    check_servable,
    check_shapes,
)
from recipes import catalog
from recipes.schema import Recipe, ServingProfile

Weights = dict[str, VariantWeights]
"""What each recipe makes of the checkpoint, by its name; the baseline's too."""


def find_missing_gpus(profile: ServingProfile, machine: Machine) -> PrepareError | None:
    """A profile for GPUs needs them: as many as one copy is spread over."""
    if profile.accelerator != "cuda":
        return None
    wanted = tensor_parallel(profile)
    if machine.gpus >= wanted:
        return None
    found = f"this machine has {machine.gpus}" if machine.gpus else "none is found here"
    return UsageError(
        f"the profile '{profile.name}' serves on {wanted} NVIDIA GPU{'s' if wanted > 1 else ''}, "
        f"and {found}",
        where=f"--profile {profile.name}",
        cure="run on a machine that nvidia-smi lists them on, or choose another profile: "
        f"{', '.join(catalog.profile_names())}",
    )


def find_driver_fault(profile: ServingProfile, machine: Machine) -> PrepareError | None:
    """A driver that cannot run the CUDA of the locked environments: work would be on the CPU."""
    if profile.accelerator != "cuda" or not is_driver_too_old(machine.driver):
        return None
    return PreflightError(
        f"the NVIDIA driver is {machine.driver}, and the CUDA 13 of the environments needs "
        f"{LEAST_DRIVER} or newer",
        where=f"--profile {profile.name}",
        cure=f"install a driver from {LEAST_DRIVER} on; or name interpreters of your own for "
        "quantize and serve in the settings file, built for an older CUDA",
    )


def find_gpu_fault(
    recipe: Recipe, profile: ServingProfile, machine: Machine
) -> PrepareError | None:
    """A GPU without the recipe's number format: FP8 below compute capability 8.9."""
    needed = recipe.minimum_compute_capability
    found = machine.compute_capability if profile.accelerator == "cuda" else None
    if needed is None or found is None or found >= needed:
        return None
    return UsageError(
        f"'{recipe.name}' needs a GPU of compute capability {needed}, this one has {found}",
        where=f"--recipe {recipe.name}",
        cure="leave the recipe out, or run on a newer GPU",
    )


def find_unsuitable(
    recipe: Recipe,
    source: Source,
    weights: VariantWeights,
    architecture: str,
    profile: ServingProfile,
    features: Collection[str],
    *,
    made: bool = False,
) -> Iterable[PrepareError]:
    """A recipe that is not for this model or this machine; see pipeline/plan/suitability.py.

    Where its weights are `made` already, only serving them is still to come.
    """
    serving: tuple[Callable[[], None], ...] = (
        lambda: check_servable(recipe, profile.accelerator, features),
    )
    making: tuple[Callable[[], None], ...] = (
        lambda: check_architecture(recipe, architecture),
        lambda: check_experts(recipe, source.tensors),
        lambda: check_mtp(recipe, source.tensors, source.config),
        lambda: check_shapes(recipe, weights),
    )
    for check in serving if made else (*serving, *making):
        try:
            check()
        except PrepareError as fault:
            yield fault


def find_gpu_memory_faults(
    inspection: Inspection,
    recipes: Sequence[Recipe],
    weights: Weights,
    profile: ServingProfile,
    machine: Machine,
) -> Iterable[PrepareError]:
    """The baseline or a variant that the engine could not start with on this machine's GPUs.

    A GPU that no data file describes is not checked. All of them have to be served, so that
    another recipe is no cure for one.
    """
    gpu = catalog.gpu_of_driver(machine.gpu) if machine.gpu else None
    if gpu is None or profile.accelerator != "cuda":
        return
    together = tensor_parallel(profile)
    site = Site.of(inspection, gpu, together, profile)
    for candidate in candidates_of(inspection, recipes, weights):
        fit = site.fit(candidate, together, reserve_at_least=True)
        if fit.obstacle in ("split", "weights", "context"):
            number = f"{together} x {gpu.name}" if together > 1 else f"one {gpu.name}"
            yield PreflightError(
                f"'{fit.variant}' cannot be served on {number}: {fit.reason}",
                where=f"--profile {profile.name}",
                cure=cure(fit, candidate, (), site)
                + ("" if candidate.is_baseline else "; or leave the recipe out"),
            )


def find_memory_faults(
    inspection: Inspection,
    recipes: Sequence[Recipe],
    weights: Weights,
    profile: ServingProfile,
    machine: Machine,
    made: Collection[str] = (),
) -> Iterable[PrepareError]:
    """Stages that need more of the machine's memory than there is.

    Nothing is quantized for the recipes named in `made`: their weights are there already.
    """
    for need in stage_needs(inspection, recipes, weights, profile, made):
        if need.host_bytes is not None and need.host_bytes > machine.memory_bytes:
            yield PreflightError(
                f"the stage '{need.stage}' of '{need.variant}' needs about "
                f"{need.host_bytes / 1e9:,.1f} GB of memory ({need.basis}), this machine has "
                f"{machine.memory_bytes / 1e9:,.1f} GB",
                where=f"--recipe {need.variant}",
                cure="run on a machine with more memory"
                + (", or leave the recipe out" if need.variant != catalog.BASELINE else ""),
            )


def find_disk_fault(
    weights: Weights, stored: Collection[str], download: int, machine: Machine, store: str
) -> PrepareError | None:
    """Variants that are still to be made need more space than the store's disk has.

    Those in `stored` are made; `download` are bytes of the checkpoint that the same disk gets.
    """
    to_make = {
        name: made.bytes + SMALL_FILES_BYTES
        for name, made in weights.items()
        if name not in stored and name != catalog.BASELINE
    }
    needed = sum(to_make.values()) + download
    if needed <= machine.free_disk_bytes:
        return None
    parts = [f"{name} {size / 1e9:,.1f}" for name, size in to_make.items()]
    if download:
        parts.insert(0, f"download {download / 1e9:,.1f}")
    return PreflightError(
        f"the run needs {needed / 1e9:,.1f} GB of disk ({', '.join(parts)}), "
        f"{machine.free_disk_bytes / 1e9:,.1f} GB are free",
        where=store,
        cure="free some space"
        + (", name another place with --store DIR, or leave recipes out" if to_make else ""),
    )


def tensor_parallel(profile: ServingProfile) -> int:
    """GPUs that one copy is spread over."""
    value = profile.engine_arguments.get("tensor-parallel-size", 1)
    return value if type(value) is int and value > 0 else 1
