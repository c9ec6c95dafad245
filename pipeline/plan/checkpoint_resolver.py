"""Locates a run's checkpoints and refuses unsupported ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.checkpoint.demo_model import DEMO_LOCK
from pipeline.checkpoint.folder import Checkpoint, CheckpointReference, inspect_folder
from pipeline.checkpoint.hub import download
from pipeline.checkpoint.unsupported import architecture_error, own_code_error, quantized_error
from pipeline.core.digest import digest_bytes
from pipeline.core.events import Progress
from pipeline.core.stage import WorkerRuntime
from pipeline.core.stage_record import StageSpec
from pipeline.environments.environment import Accelerator, identity
from pipeline.environments.settings import Settings
from pipeline.plan.resolved_options import ResolvedOptions
from pipeline.plan.serving_profile import draft_reference
from pipeline.stages.demo_checkpoint import DEMO_CHECKPOINT, DemoParameters
from recipes.schema import ServingProfile


def locate(
    choices: ResolvedOptions,
    settings: Settings,
    make_demo: Callable[[StageSpec], Path],
    progress: Progress,
    *,
    to_quantize: bool = True,
) -> Checkpoint:
    """Find, fetch or make the checkpoint, and inspect it.

    Args:
        make_demo: runs the demo's stage and returns the checkpoint's folder.
        to_quantize: variants are to be made of it, so it must not be one.

    Raises:
        CheckpointError: it is missing, damaged, not supported or already quantized.
    """
    checkpoint = _fetch(choices.reference, choices.profile, settings, make_demo, progress)
    check_supported(checkpoint, choices, to_quantize=to_quantize)
    return checkpoint


def locate_draft(
    profile: ServingProfile,
    settings: Settings,
    make_demo: Callable[[StageSpec], Path],
    progress: Progress,
    *,
    trust_remote_code: bool,
) -> Checkpoint | None:
    """Locate the draft checkpoint; None if the profile names none."""
    reference = draft_reference(profile)
    if reference is None:
        return None
    draft = _fetch(reference, profile, settings, make_demo, progress, is_head=True)
    if draft.needs_remote_code and not trust_remote_code:
        raise own_code_error(str(draft.path / "config.json"))
    return draft


def demo_stage(choices: ResolvedOptions, settings: Settings) -> StageSpec:
    """Return the stage that makes the demo checkpoint."""
    return demo_stage_of(choices.reference, choices.profile, settings)


def demo_stage_of(
    reference: CheckpointReference, profile: ServingProfile, settings: Settings
) -> StageSpec:
    """Return the stage that makes the demo checkpoint in the profile's environment."""
    accelerator = Accelerator(profile.accelerator)
    return DEMO_CHECKPOINT.spec(
        "demo",
        DemoParameters(
            model=reference.name,
            package=digest_bytes(DEMO_LOCK.read_bytes()),
            environment=identity("quantize", accelerator, settings),
        ),
        {},
        WorkerRuntime(environment="quantize"),
        settings.store,
    )


def _fetch(
    reference: CheckpointReference,
    profile: ServingProfile,
    settings: Settings,
    make_demo: Callable[[StageSpec], Path],
    progress: Progress,
    *,
    is_head: bool = False,
) -> Checkpoint:
    revision = None
    if reference.kind == "demo":
        folder = make_demo(demo_stage_of(reference, profile, settings))
    elif reference.kind == "hub":
        folder, revision = download(reference.name, reference.revision, progress=progress)
    else:
        folder = Path(reference.name).expanduser()
    return inspect_folder(
        folder,
        ref=reference.text,
        kind=reference.kind,
        revision=revision,
        digests=settings.digests,
        progress=progress,
        is_head=is_head,
    )


def check_supported(checkpoint: Checkpoint, choices: ResolvedOptions, *, to_quantize: bool) -> None:
    """Raise CheckpointError for a checkpoint that no recipe supports or vLLM cannot serve."""
    config = str(checkpoint.path / "config.json")
    if checkpoint.quantized and to_quantize:
        raise quantized_error(config, [file.name for file in checkpoint.files])
    if fault := architecture_error(checkpoint.architecture, config):
        raise fault
    if checkpoint.needs_remote_code and not choices.trust_remote_code:
        raise own_code_error(config)
