"""Reasons to skip a serving candidate on this machine, computed before any server starts."""

from __future__ import annotations

from pipeline.capacity.fit import GpuPool
from pipeline.capacity.gpu_plan import candidates_of
from pipeline.capacity.machine import Machine
from pipeline.capacity.serving_limits import ServingLimits
from pipeline.inspection.inspection import CheckpointInspection
from pipeline.plan.tuning_plan import ScreeningCandidate, gpus_of
from pipeline.preflight.checks import tensor_parallel
from recipes import catalog
from recipes.engine_arguments import EXPERT_PARALLEL
from recipes.gpu import GpuType
from recipes.schema import AcceleratorName, EngineValue, ServingProfile
from recipes.tuning_candidates import ServingCandidate

# vLLM 0.33's largest CUDA graphs, in sequences: on GPUs of compute capability 10.x, and on others.
BLACKWELL, BLACKWELL_GRAPH, LARGEST_GRAPH = 10, 1024, 512


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
    profile = screened.profile
    if described is not None and _equals_the_engines(screened, defaults, described):
        return f"{described.name} has these values by default"
    if why := _nothing_to_change(profile, defaults.profile, inspection, wanted):
        return why
    if inspection is None or described is None:
        return ""
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


def _equals_the_engines(
    screened: ScreeningCandidate, defaults: ScreeningCandidate, gpu: GpuType
) -> bool:
    """Return whether all that the candidate sets are the engine's own values on this GPU."""
    limits = ServingLimits.of(gpu, None)
    largest = BLACKWELL_GRAPH if int(gpu.compute_capability) == BLACKWELL else LARGEST_GRAPH
    own: dict[str, EngineValue] = {
        "max-num-batched-tokens": limits.step_tokens,
        "max-num-seqs": limits.sequences,
        "gpu-memory-utilization": limits.utilization,
        "max-cudagraph-capture-size": min(2 * limits.sequences, largest),
    }
    before = defaults.profile.engine_arguments
    alike = screened.profile.model_copy(update={"engine_arguments": before})
    if alike != defaults.profile:
        return False  # another setting changes, too
    return all(
        name in own and own[name] == value
        for name, value in screened.profile.engine_arguments.items()
        if before.get(name) != value
    )


def _nothing_to_change(
    profile: ServingProfile,
    defaults: ServingProfile,
    inspection: CheckpointInspection | None,
    gpus: int,
) -> str:
    """Return why the candidate's parameter is not in this model or division; "" if it is."""
    arguments = profile.engine_arguments
    added = arguments.keys() - defaults.engine_arguments.keys()
    if any("allreduce" in name for name in added) and gpus == 1:
        return "one GPU has no all-reduce"
    if EXPERT_PARALLEL in added and gpus == 1:
        return "one GPU has all experts"
    if inspection is None:
        return ""
    if EXPERT_PARALLEL in added and not inspection.shape.experts:
        return "the model has no experts"
    speculative = profile.speculative
    if speculative and speculative.method == "mtp" and "mtp" not in inspection.parameters:
        return "the checkpoint has no layers for multi-token prediction"
    no_windows = all(window is None for window in inspection.cache.windows)
    if "sliding_window" in str(arguments.get("kv-cache-dtype-skip-layers")) and no_windows:
        return "the model has no sliding windows"
    return ""
