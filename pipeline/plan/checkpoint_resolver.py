"""Locates a run's checkpoints and refuses unsupported ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.core.digest import digest_bytes
from pipeline.core.errors import CheckpointError
from pipeline.core.events import Progress
from pipeline.core.stage import StageSpec, WorkerRuntime
from pipeline.environments.environment import Accelerator, identity
from pipeline.environments.settings import Settings
from pipeline.plan.resolved_options import Choice
from pipeline.plan.serving_profile import draft_reference
from pipeline.stages.demo_checkpoint import DEMO_CHECKPOINT, DEMO_LOCK, DemoParameters
from pipeline.stages.dequantize import DEQUANTIZE, DequantizeParameters, DequantizeRuntime
from recipes.checkpoints import unsupported
from recipes.checkpoints.folder import Checkpoint, CheckpointReference, inspect_folder, read_config
from recipes.checkpoints.header_source import read_folder
from recipes.checkpoints.hub import download
from recipes.schema import ServingProfile
from recipes.weights.files import check_adopted_files

Make = Callable[[StageSpec], Path]
"""Runs a stage and returns the checkpoint's folder."""


@dataclass(frozen=True)
class Located:
    """Inspected source, adopted variants and draft."""

    source: Checkpoint
    adopted: Mapping[str, Checkpoint] = field(default_factory=dict)
    draft: Checkpoint | None = None


def locate_all(choices: Choice, settings: Settings, make: Make, progress: Progress) -> Located:
    """Locate every checkpoint; raises as each function."""
    source = locate(choices, settings, make, progress)
    adopted = locate_variants(choices, source, settings, make, progress)
    trusted = choices.trust_remote_code
    draft = locate_draft(choices.profile, settings, make, progress, trust_remote_code=trusted)
    return Located(source, adopted, draft)


def locate(
    choices: Choice,
    settings: Settings,
    make: Make,
    progress: Progress,
    *,
    to_quantize: bool = True,
) -> Checkpoint:
    """Find, fetch or make the checkpoint, and inspect it.

    Recipes (`to_quantize`) need 16-bit weights. CheckpointError: missing, damaged, unsupported, or
    not convertible to 16 bits.
    """
    checkpoint = _fetch(choices.reference, choices.profile, settings, make, progress)
    where = str(checkpoint.path / "config.json")
    config = read_config(checkpoint.path)
    if fault := unsupported.architecture_error(checkpoint.architecture, config, where):
        raise fault
    _check_code(checkpoint, trusted=choices.trust_remote_code)
    form = read_folder(checkpoint.path).format
    if form is None or not to_quantize:
        return checkpoint
    if fault := unsupported.dequantization_error(where, form):
        if any(recipe.quantization.quantizes for recipe in choices.recipes):
            raise fault
        return checkpoint
    assert form.converter is not None
    spec = DEQUANTIZE.spec(
        "dequantized",
        DequantizeParameters(
            checkpoint=checkpoint.digest,
            converter=form.converter,
            environment=identity("quantize", Accelerator(choices.profile.accelerator), settings),
        ),
        {},
        DequantizeRuntime(checkpoint=checkpoint, environment="quantize"),
        settings.store,
    )
    made = inspect_folder(
        make(spec),
        ref=checkpoint.ref,
        kind="folder",
        revision=None,
        digests=settings.digests,
        progress=progress,
    )
    return checkpoint.model_copy(update={"dequantized": made})


def locate_draft(
    profile: ServingProfile,
    settings: Settings,
    make: Make,
    progress: Progress,
    *,
    trust_remote_code: bool,
) -> Checkpoint | None:
    """Locate the draft checkpoint, if any."""
    reference = draft_reference(profile)
    if reference is None:
        return None
    draft = _fetch(reference, profile, settings, make, progress, is_head=True)
    _check_code(draft, trusted=trust_remote_code)
    return draft


def locate_variants(
    choices: Choice, source: Checkpoint, settings: Settings, make: Make, progress: Progress
) -> dict[str, Checkpoint]:
    """Fetch and inspect adopted variants; a served one's is the source.

    CheckpointError: one is missing or damaged, is the source, has untrusted code, or another model
    or tokenizer.
    """
    found = {}
    for variant in choices.adopted:
        found[variant.recipe.name] = source
        if variant.reference is None:
            continue
        made = _fetch(variant.reference, choices.profile, settings, make, progress)
        if made.digest == source.digest:
            raise CheckpointError(
                "the variant is the source itself",
                where=str(made.path),
                hint="name the checkpoint that was made of it",
            )
        _check_code(made, trusted=choices.trust_remote_code)
        check_adopted_files(source.path, made.path)
        found[variant.recipe.name] = made
    return found


def demo_stage(
    reference: CheckpointReference, profile: ServingProfile, settings: Settings
) -> StageSpec:
    """Return the stage that makes the demo checkpoint."""
    return DEMO_CHECKPOINT.spec(
        "demo",
        DemoParameters(
            model=reference.name,
            package=digest_bytes(DEMO_LOCK.read_bytes()),
            environment=identity("quantize", Accelerator(profile.accelerator), settings),
        ),
        {},
        WorkerRuntime(environment="quantize"),
        settings.store,
    )


def _fetch(
    reference: CheckpointReference,
    profile: ServingProfile,
    settings: Settings,
    make: Make,
    progress: Progress,
    *,
    is_head: bool = False,
) -> Checkpoint:
    revision = None
    if reference.kind == "demo":
        folder = make(demo_stage(reference, profile, settings))
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


def _check_code(checkpoint: Checkpoint, *, trusted: bool) -> None:
    if checkpoint.needs_remote_code and not trusted:
        raise unsupported.own_code_error(str(checkpoint.path / "config.json"))
