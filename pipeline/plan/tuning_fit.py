"""Reasons to skip a serving candidate on this machine, computed before any server starts."""

from __future__ import annotations

from pipeline.plan.machine import Machine
from pipeline.plan.memory import Model
from pipeline.plan.tuning_plan import ScreeningCandidate, gpus_of
from recipes.engine_arguments import EXPERT_PARALLEL
from recipes.schema import AcceleratorName, ServingProfile
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
    model: Model | None,
) -> str:
    """Return why it cannot be served here, or equals the defaults; "" if it can.

    Args:
        screened: the candidate.
        defaults: its comparison.
        model: None if the checkpoint's shape is unknown.
    """
    if (speculative := screened.profile.speculative) is not None and speculative.model is not None:
        return "it drafts by a model, and draft models are not tuned"
    if screened.serving == defaults.serving:
        because = "; ".join(each.reason for each in screened.fitted.in_effect.values())
        return f"here it is the same as the defaults{f': {because}' if because else ''}"
    wanted, there = gpus_of(screened.serving), gpus_of(defaults.serving)
    if wanted != there:
        return f"it uses {wanted} GPUs and the defaults {there}"
    return _nothing_to_change(screened.profile, defaults.profile, model, wanted)


def _nothing_to_change(
    profile: ServingProfile,
    defaults: ServingProfile,
    model: Model | None,
    gpus: int,
) -> str:
    """Return why the candidate's parameter is not in this model or division; "" if it is."""
    arguments = profile.engine_arguments
    added = arguments.keys() - defaults.engine_arguments.keys()
    if any("allreduce" in name for name in added) and gpus == 1:
        return "one GPU has no all-reduce"
    if EXPERT_PARALLEL in added and gpus == 1:
        return "one GPU has all experts"
    if model is None:
        return ""
    if EXPERT_PARALLEL in added and not model.shape.experts:
        return "the model has no experts"
    speculative = profile.speculative
    if speculative and speculative.method == "mtp" and "mtp" not in model.kinds.values():
        return "the checkpoint has no layers for multi-token prediction"
    no_windows = all(layer.window is None for layer in model.layers)
    if "sliding_window" in str(arguments.get("kv-cache-dtype-skip-layers")) and no_windows:
        return "the model has no sliding windows"
    return ""
