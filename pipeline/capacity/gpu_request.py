"""Resolves the options of `prepare plan --gpu` to a capacity plan without downloads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.capacity.gpu_plan import CapacityPlan, capacity_plan
from pipeline.capacity.machine import gpu_type, machine_of
from pipeline.checkpoint.reference import CheckpointReference
from pipeline.core.errors import CheckpointError
from pipeline.environments.settings import Settings
from pipeline.inspection.header_source import HeaderSource, read_folder, read_hub
from pipeline.inspection.inspection import inspect
from pipeline.plan.checkpoint_resolver import demo_stage_of
from pipeline.plan.resolved_options import ModelRequest, ResolvedOptions, choose
from pipeline.plan.serving_profile import draft_reference
from pipeline.plan.speed_power import SpeedPower, claim_powers
from recipes import catalog
from recipes.engine_arguments import DIVIDES_GPUS
from recipes.schema import ServingProfile

OTHER_DIVISIONS = tuple(name for name in DIVIDES_GPUS if name != "tensor-parallel-size")


def answer(
    request: ModelRequest, settings: Settings, gpu_name: str, gpus: int, context: int | None
) -> CapacityPlan:
    """Inspect the checkpoint and fit it on the GPUs.

    The profile "auto" is the one for the requested GPU. The context defaults to the model's.

    Raises:
        UsageError: a name does not exist.
        CheckpointError: the checkpoint is missing or damaged.
    """
    gpu = catalog.load_gpu(gpu_name)
    if request.profile == "auto":
        profile = catalog.profile_for_gpu(gpu.driver_name)
    else:
        profile = catalog.load_profile(request.profile)
    # Recipes and checkpoint do not depend on the profile. This machine need not have the requested
    # GPU, so its own is not inspected.
    choices = choose(replace(request, profile="cpu", gpus_a_copy=None), settings)
    source = read_source(choices, settings)
    plan = capacity_plan(
        inspect(source),
        choices.recipes,
        gpu,
        gpus,
        profile=profile,
        context=context,
        draft_bytes=read_draft_bytes(profile, settings) if profile else 0,
        gpus_a_copy=request.gpus_a_copy,
        adopted={each.recipe.name: each.header for each in choices.adopted if each.header},
    )
    measuring = None
    if profile is not None:
        measuring = profile.spread_over(plan.gpus_a_copy, expert_parallel=plan.expert_parallel)
    return replace(plan, speed=_speed_gates(measuring, choices))


def _speed_gates(
    profile: ServingProfile | None, choices: ResolvedOptions
) -> tuple[SpeedPower, ...]:
    """Return the policy's speed gates on the plan's GPUs; none without a profile.

    Raises:
        UsageError: a workload is missing or invalid.
    """
    if profile is None:
        return ()
    return claim_powers(choices.policy, len(choices.recipes), profile)


def spread_over_gpus(choices: ResolvedOptions, settings: Settings) -> ResolvedOptions:
    """Return the options with the number of GPUs of one replica in the profile.

    It is the request's, or the profile's, or the plan's best for the GPUs of this machine. Expert
    parallelism is switched on if the models cannot be split otherwise. A profile that divides GPUs
    by its own keys is not changed.

    Raises:
        UsageError: the machine has fewer GPUs than the request's number.
    """
    profile, asked = choices.profile, choices.asked.gpus_a_copy
    if profile.accelerator != "cuda":
        return choices
    if asked is None and any(key in profile.engine_arguments for key in OTHER_DIVISIONS):
        return choices
    machine = machine_of(choices.node, settings.store, with_gpu=True)
    gpu, expert_parallel = gpu_type(machine), False
    number = asked or profile.gpus_a_copy or 1
    if gpu is not None and machine.gpus > 1:
        try:
            inspection = inspect(read_source(choices, settings))
        except CheckpointError:  # of unknown shape, or a demo that is not made yet
            pass
        else:
            plan = capacity_plan(
                inspection,
                choices.recipes,
                gpu,
                machine.gpus,
                profile=profile,
                draft_bytes=read_draft_bytes(profile, settings),
                gpus_a_copy=asked,
            )
            number, expert_parallel = plan.gpus_a_copy, plan.expert_parallel
    return replace(choices, profile=profile.spread_over(number, expert_parallel=expert_parallel))


def read_source(choices: ResolvedOptions, settings: Settings) -> HeaderSource:
    """Read the checkpoint's config and headers.

    Raises:
        CheckpointError: it is missing or damaged, or is a demo that is not made yet.
    """
    return _read(choices.reference, choices.profile, settings)


def read_draft_bytes(profile: ServingProfile, settings: Settings) -> int:
    """Return the bytes of the draft model's weights; 0 without one, or if they are not found.

    Raises:
        UsageError: the profile's key is not a valid checkpoint name.
    """
    reference = draft_reference(profile)
    if reference is None:
        return 0
    try:
        return _read(reference, profile, settings).weights_bytes
    except CheckpointError:  # the download reports it
        return 0


def _read(
    reference: CheckpointReference, profile: ServingProfile, settings: Settings
) -> HeaderSource:
    if reference.kind == "hub":
        return read_hub(reference.name, reference.revision)
    if reference.kind == "folder":
        return read_folder(Path(reference.name).expanduser(), reference.text)
    spec = demo_stage_of(reference, profile, settings)
    store = settings.open_store()
    if store.find(spec.stage, spec.key) is None:
        raise CheckpointError(
            "the demo checkpoint is not made yet",
            where=reference.text,
            hint=f"make it by: prepare model {reference.text}",
        )
    return read_folder(store.stage_folder(spec.stage, spec.key) / "output", reference.text)
