"""Reasons to skip a serving candidate on this machine, computed before any server starts."""

from __future__ import annotations

from pipeline.capacity.fit import GpuPool
from pipeline.capacity.gpu_plan import candidates_of
from pipeline.capacity.machine import Machine
from pipeline.inspection.inspection import CheckpointInspection
from pipeline.plan.tuning_plan import ScreeningCandidate, gpus_of
from pipeline.preflight.checks import tensor_parallel
from recipes import catalog
from recipes.schema import AcceleratorName
from recipes.tuning_candidates import ServingCandidate


def skip_reason(candidate: ServingCandidate, accelerator: AcceleratorName, machine: Machine) -> str:
    """Return why the candidate is not for such a machine; "" if it is."""
    if candidate.accelerator not in (None, accelerator):
        return f"for {candidate.accelerator}, and this profile is for {accelerator}"
    needed, here = candidate.minimum_compute_capability, machine.compute_capability
    if needed is not None and here is not None and here < needed:
        return f"needs compute capability {needed}, {machine.gpu} has {here}"
    return ""


def misfit(
    screened: ScreeningCandidate,
    defaults: ScreeningCandidate,
    inspection: CheckpointInspection | None,
    gpu: str | None,
) -> str:
    """Return why it cannot be served here, or equals the defaults; "" if it can.

    Args:
        screened: the candidate.
        defaults: its comparison.
        inspection: None if the checkpoint's shape is unknown.
        gpu: the driver's name; None on a CPU.
    """
    if (speculative := screened.profile.speculative) is not None and speculative.model is not None:
        return "it drafts by a model, and draft models are not tuned"
    if screened.serving == defaults.serving:
        because = "; ".join(each.reason for each in screened.fitted.in_effect.values())
        return f"here it is the same as the defaults{f': {because}' if because else ''}"
    wanted, there = gpus_of(screened.serving), gpus_of(defaults.serving)
    if wanted != there:
        return f"it uses {wanted} GPUs and the defaults {there}"
    described = catalog.gpu_of_driver(gpu) if gpu else None
    if inspection is None or described is None:
        return ""
    profile = screened.profile
    # The model has the baseline's weights and the candidate's cache.
    profile = profile.model_copy(update={"baseline_kv_cache_dtype": profile.kv_cache_dtype})
    together = tensor_parallel(profile)
    recipe = catalog.load_recipe(catalog.BASELINE)
    weights = {recipe.name: inspection.variant(recipe.quantization)}
    (candidate,) = candidates_of(inspection, [recipe], weights)
    site = GpuPool.of(inspection, described, together, profile)
    fit = site.fit(candidate, together, reserve_at_least=True)
    return (
        f"it does not fit: {fit.reason}" if fit.obstacle in ("split", "weights", "context") else ""
    )
