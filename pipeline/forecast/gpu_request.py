"""From the options of `prepare plan --gpu` to a capacity plan; nothing is downloaded or run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.core.errors import CheckpointError
from pipeline.core.store import Store
from pipeline.environments.settings import Settings
from pipeline.forecast.gpu_plan import CapacityPlan, capacity_plan
from pipeline.inspection.inspection import inspect
from pipeline.inspection.source import Source, read_folder, read_hub
from pipeline.plan.choices import Choices, Request, choose, demo_stage
from recipes import catalog


def answer(
    request: Request, settings: Settings, gpu_name: str, gpus: int, context: int | None
) -> CapacityPlan:
    """Inspect the checkpoint and lay it on the GPUs.

    The request is as for `prepare model`; its profile "auto" is the one for the GPU asked about.
    Without a context, it is the model's.

    Raises:
        UsageError: something named does not exist.
        CheckpointError: the checkpoint is missing or damaged.
    """
    gpu = catalog.load_gpu(gpu_name)
    if request.profile == "auto":
        profile = catalog.profile_for_gpu(gpu.driver_name)
    else:
        profile = catalog.load_profile(request.profile)
    # The recipes and the checkpoint's name do not depend on the profile. The machine that asks
    # need not have the GPU that is asked about, so its own is not looked at.
    choices = choose(replace(request, profile="cpu"), settings)
    return capacity_plan(
        inspect(read_source(choices, settings)),
        choices.recipes,
        gpu,
        gpus,
        profile=profile,
        context=context,
        store=settings.store,
    )


def read_source(choices: Choices, settings: Settings) -> Source:
    """Config and headers of the checkpoint, wherever it is.

    Raises:
        CheckpointError: it is missing or damaged, or a demo that was not made yet.
    """
    reference = choices.reference
    if reference.kind == "hub":
        return read_hub(reference.name, reference.revision)
    if reference.kind == "folder":
        return read_folder(Path(reference.name).expanduser(), reference.text)
    spec = demo_stage(choices, settings)
    store = Store(settings.store)
    if store.find(spec.stage, spec.key) is None:
        raise CheckpointError(
            "the demo checkpoint is not made yet",
            where=reference.text,
            cure=f"make it by: prepare model {reference.text}",
        )
    return read_folder(store.stage_folder(spec.stage, spec.key) / "output", reference.text)
